"""What failures of HTTP mean to those who asked an upstream."""

from headrace.errors import HeadraceError
from headrace.routing.http.errors import HttpError, MalformedError
from headrace.routing.upstream.errors import UpstreamBrokenError, UpstreamUnreachableError
from headrace.routing.upstream.refusals import Refusals


def translated(error: HttpError, refusals: Refusals) -> HeadraceError:
    is_malformed = isinstance(error, MalformedError)
    kind = UpstreamBrokenError if is_malformed else UpstreamUnreachableError
    return kind(refusals.sentence(str(error)))
