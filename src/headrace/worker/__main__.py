"""`python -m headrace.worker --connect ENDPOINT --parent PID`."""

import sys

from headrace.worker.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
