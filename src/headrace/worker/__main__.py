"""`python -m headrace.worker --connect ENDPOINT --parent PID`."""

import sys

from headrace.imports import without

with without("rich"):  # structlog takes it when it is there, and we print plain traces
    from headrace.worker.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
