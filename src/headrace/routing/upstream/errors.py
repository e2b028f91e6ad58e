"""The errors of an upstream. Their sentences name it and never hold its key.

UnavailableError
|-- UpstreamUnreachableError  503  upstream_unreachable  no connection, or no answer on it in time
|-- UpstreamBusyError         503  upstream_busy         it has too much to do: 408, 429 and 503
`-- UpstreamBrokenError       503  upstream_broken       its answer ended early or makes no sense
HeadraceError
|-- UpstreamFaultError        500  upstream_fault        it failed: other 5xx
`-- UpstreamRefusedError      500  upstream_refused      it refuses us, not the client
"""

from headrace.errors import HeadraceError, UnavailableError


class UpstreamUnreachableError(UnavailableError):
    """No connection to it, or no answer on one in time."""

    code = "upstream_unreachable"


class UpstreamBusyError(UnavailableError):
    """It has too much to do, or has not started yet; nothing is wrong with it."""

    code = "upstream_busy"


class UpstreamBrokenError(UnavailableError):
    """What came is not an answer, or not all of one."""

    code = "upstream_broken"


class UpstreamFaultError(HeadraceError):
    """It failed and said so."""

    code = "upstream_fault"


class UpstreamRefusedError(HeadraceError):
    """It refuses what we are or where we ask, not what the client asks for."""

    code = "upstream_refused"
