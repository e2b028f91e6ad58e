"""Every failure as one JSON shape: {"error": {message, type, param, code, request_id}}."""

import math
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.exchange import Exchange, exchange_of
from headrace.errors import BodyTimeoutError, HeadraceError

UNAVAILABLE = 503
DEFAULT_RETRY_AFTER = 1.0  # seconds, where an error knows no better
_ROUTING = {
    404: ("not_found", "There is no {method} {path}."),
    405: ("method_not_allowed", "{path} does not answer {method}."),
}


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
    return _encode(ErrorDetail(error.message, error.type, error.param, error.code, request_id))


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
    if isinstance(error, BodyTimeoutError):
        headers["Connection"] = "close"  # the rest of the body may still come
    return _json(error_body(error, exchange.request_id), error.status, headers)


async def answer_headrace_error(request: Request, exc: Exception) -> Response:
    if isinstance(exc, HeadraceError):
        return error_response(exc, exchange_of(request.scope))
    raise exc


async def answer_routing_error(request: Request, exc: Exception) -> Response:
    """404 and 405 of the router itself."""
    if not isinstance(exc, HTTPException):
        raise exc
    exchange = exchange_of(request.scope)
    code, sentence = _ROUTING.get(exc.status_code, ("invalid_request", str(exc.detail)))
    message = sentence.format(method=request.method, path=request.url.path)
    exchange.error_code = code
    detail = ErrorDetail(message, "invalid_request_error", None, code, exchange.request_id)
    return _json(_encode(detail), exc.status_code, dict(exc.headers or {}))


def _encode(detail: ErrorDetail) -> bytes:
    return msgspec.json.encode(ErrorBody(detail))


def _json(body: bytes, status: int, headers: dict[str, Any]) -> Response:
    return Response(body, status, headers, media_type="application/json")
