"""`python -m headrace.worker --connect ENDPOINT --parent PID`."""

import sys

from headrace.imports import fast_imports

with fast_imports(hidden=["rich"]):  # structlog would take it, and we print plain traces
    from headrace.worker.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
