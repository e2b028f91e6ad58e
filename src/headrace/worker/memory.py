"""How much memory this process holds."""

import os
import resource
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """The resident set now where the system tells, else its peak."""
    if _STATM.exists():
        return int(_STATM.read_bytes().split()[1]) * _PAGE
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
