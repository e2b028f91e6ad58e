"""Every failure as one JSON shape: {"error": {message, type, param, code, request_id}}."""

import math
from collections.abc import Iterable

import msgspec
from starlette.responses import Response

from headrace.api.exchange import Exchange
from headrace.errors import BodyTimeoutError, DeadlineError, HeadraceError

UNAVAILABLE = 503
DEFAULT_RETRY_AFTER = 1.0  # seconds, where an error knows no better


class NoRouteError(HeadraceError):
    """Nothing answers under that path."""

    status = 404
    code = "not_found"
    type = "invalid_request_error"

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"There is no {method} {path}.")


class MethodError(HeadraceError):
    """The path answers other methods."""

    status = 405
    code = "method_not_allowed"
    type = "invalid_request_error"

    def __init__(self, method: str, path: str, *, allowed: Iterable[str]) -> None:
        super().__init__(f"{path} does not answer {method}.")
        self.allowed = ", ".join(sorted(allowed))


class MalformedRequestError(HeadraceError):
    """The bytes that came are no HTTP."""

    status = 400
    code = "malformed_http"
    type = "invalid_request_error"


class HeadTooLargeError(HeadraceError):
    """The request line and the headers together are over the bound."""

    status = 431
    code = "head_too_large"
    type = "invalid_request_error"


class PipelineError(HeadraceError):
    """A client asks on and on and waits for no answer."""

    status = 400
    code = "too_many_pipelined"
    type = "invalid_request_error"


class ForeignOriginError(HeadraceError):
    """A browser asks on behalf of a page that is not this machine's."""

    status = 403
    code = "foreign_origin"
    type = "permission_error"


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong, for people (`message`) and for programs (`code`)."""

    message: str
    type: str
    param: str | None
    code: str
    request_id: str


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorDetail


def error_body(error: HeadraceError, request_id: str) -> bytes:
    detail = ErrorDetail(error.message, error.type, error.param, error.code, request_id)
    return msgspec.json.encode(ErrorBody(detail))


def error_response(exc: Exception, exchange: Exchange) -> Response:
    """Answer a failure; one that is no HeadraceError is a fault of ours and tells no details."""
    error = exc if isinstance(exc, HeadraceError) else HeadraceError("Internal server error.")
    exchange.error_code = error.code
    headers = {}
    retry_after = error.retry_after
    if retry_after is None and error.status == UNAVAILABLE:
        retry_after = DEFAULT_RETRY_AFTER
    if retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
    if exchange.is_body_arriving and isinstance(error, BodyTimeoutError | DeadlineError):
        headers["Connection"] = "close"  # the rest of the body may come for ever
    if isinstance(error, MethodError):
        headers["Allow"] = error.allowed
    body = error_body(error, exchange.request_id)
    return Response(body, error.status, headers, media_type="application/json")
