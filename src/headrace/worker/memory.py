"""How much memory this process holds."""

import os
import resource
import sys
from pathlib import Path

_STATM = "/proc/self/statm"
_HAS_STATM = Path(_STATM).exists()
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """The resident set now where the system tells, else its peak."""
    if _HAS_STATM:
        # Once a second amid tokens: pathlib and buffered files would take several times as long.
        statm = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(statm, 256).split()[1]) * _PAGE
        finally:
            os.close(statm)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
