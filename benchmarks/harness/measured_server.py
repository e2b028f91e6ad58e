"""`headrace serve` with a worker that is `harness.measured_worker`.

python -m harness.measured_server CONFIG --stamps FILE [--instant SECONDS]
"""

import argparse
import sys
from pathlib import Path

from headrace.api.server import serve
from headrace.settings import load_settings


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("config", type=Path)
    options, worker_arguments = parser.parse_known_args()
    worker = (sys.executable, "-m", "harness.measured_worker", *worker_arguments)
    serve(load_settings(options.config, {}), worker_command=worker)


if __name__ == "__main__":
    main()
