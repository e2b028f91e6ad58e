"""Answers to what is no request that a route could see, in the shape of every other error."""

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headrace.api.errors import error_body
from headrace.api.exchange import SECURITY_HEADERS, new_id
from headrace.errors import HeadraceError

log = structlog.get_logger("headrace.api")


def refusal(error: HeadraceError, client: tuple[str, int] | None) -> bytes:
    """The whole answer, after which the connection ends; also writes its line in the log."""
    request_id = new_id()
    log.info(
        "http.refused",
        request_id=request_id,
        status=error.status,
        error=error.code,
        client=client and client[0],
    )
    body = error_body(error, request_id)
    headers = (
        *SECURITY_HEADERS,
        (b"x-request-id", request_id.encode()),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    )
    head = b"".join(b"%b: %b\r\n" % header for header in headers)
    return b"%b%b\r\n%b" % (STATUS_LINE[error.status], head, body)
