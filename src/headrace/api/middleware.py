"""The onion around every route, read top to bottom: the first class is the outermost.

RequestId -> AccessLog -> SecurityHeaders -> Faults -> BodyLimit -> routes

Plain ASGI, so that streams stream through it. A layer touches an answer's start, never its chunks,
but for the byte count of the access log; the middle of a stream passes by it all, see `connection`.
"""

import asyncio
import re
import time
import uuid

import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.api.errors import error_response
from headrace.api.exchange import Exchange, attach, exchange_of
from headrace.errors import BodyTimeoutError, BodyTooLargeError, HeadraceError, UnavailableError
from headrace.telemetry.metrics import Metrics

log = structlog.get_logger("headrace.api")

REQUEST_ID_HEADER = "X-Request-ID"
CLIENT_LEFT = 499
BODY_TIMEOUT = 30.0  # seconds for a body to arrive
BODIES_ARRIVING = 16  # times `max_bytes`: what all bodies on their way may hold
_SANE_ID = re.compile(r"[A-Za-z0-9._:+/=@-]{1,128}")
_LENGTH_DIGITS = 19  # of 2**63
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
_QUIET = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})


class RequestId:
    """Gives every request an id: the caller's when it is sane, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _sane_id(scope) or uuid.uuid4().hex
        attach(scope, Exchange(request_id=request_id))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)


class AccessLog:
    """One line and one count per request, when it has ended; never a prompt."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 0
        exchange = exchange_of(scope)

        async def count(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                exchange.num_bytes += len(message.get("body", b""))
            await send(message)

        self.metrics.in_flight += 1
        try:
            await self.app(scope, receive, count)
        finally:
            self.metrics.in_flight -= 1
            if exchange.client_left:
                status = CLIENT_LEFT
            self._record(scope, exchange, status or 500)

    def _record(self, scope: Scope, exchange: Exchange, status: int) -> None:
        seconds = time.monotonic() - exchange.arrived
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = getattr(scope.get("route"), "path", "unmatched")
        self.metrics.http_request(method=method, route=route, status=status, seconds=seconds)
        fields = {
            "model": exchange.model_id,
            "error": exchange.error_code,
            "prompt_tokens": exchange.prompt_tokens,
            "completion_tokens": exchange.completion_tokens,
        }
        write = log.debug if route in _QUIET else log.info
        write(
            "http.request",
            request_id=exchange.request_id,
            method=scope["method"],
            path=scope["path"],
            status=status,
            duration_ms=round(seconds * 1e3, 2),
            bytes=exchange.num_bytes,
            **{name: value for name, value in fields.items() if value is not None},
        )


class SecurityHeaders:
    """What a browser must not do with an answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, send_secured)


class Faults:
    """Answers what no route answered: refusals of the layers below, and faults of ours."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watch(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except ClientDisconnect:
            exchange_of(scope).client_left = True
        except Exception as exc:  # whatever failed, the caller gets an answer
            if started or scope["type"] != "http":
                raise
            if not isinstance(exc, HeadraceError):
                log.exception("request.fault", request_id=exchange_of(scope).request_id)
            await error_response(exc, exchange_of(scope))(scope, receive, send)


class BodyLimit:
    """Bounds the bodies that arrive: each one's size and time, and the bytes of all together.

    A body counts until it is whole; what is made of it is bounded by the engine's queue.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, timeout: float = BODY_TIMEOUT) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.timeout = timeout
        self.num_arriving = 0  # bytes of all bodies that are not whole yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _content_length(scope) > self.max_bytes:
            raise self._too_large()
        body = _Arriving(self, receive)
        try:
            await self.app(scope, body.receive, send)
        finally:
            body.settle()

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"The request body is over the limit of {self.max_bytes} bytes.")

    def count(self, num_bytes: int, total: int) -> None:
        """Take another piece of a body that has `total` bytes now, or refuse it."""
        self.num_arriving += num_bytes
        if total > self.max_bytes:
            raise self._too_large()
        if self.num_arriving > BODIES_ARRIVING * self.max_bytes:
            raise UnavailableError("Too many request bodies arrive at once.", retry_after=1.0)


class _Arriving:
    """One body on its way."""

    def __init__(self, limit: BodyLimit, receive: Receive) -> None:
        self._limit = limit
        self._receive = receive
        self._num_bytes = 0
        self._is_whole = False
        self._deadline = time.monotonic() + limit.timeout

    async def receive(self) -> Message:
        if self._is_whole:
            return await self._receive()
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                message = await self._receive()
        except TimeoutError:
            raise BodyTimeoutError(
                f"The request body did not arrive within {self._limit.timeout:g} seconds."
            ) from None
        if message["type"] == "http.request":
            self._count(len(message.get("body", b"")))
            self._is_whole = not message.get("more_body", False)
        if self._is_whole:
            self.settle()
        return message

    def settle(self) -> None:
        self._limit.num_arriving -= self._num_bytes
        self._num_bytes = 0

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._limit.count(num_bytes, self._num_bytes)


def _sane_id(scope: Scope) -> str | None:
    value = _header(scope, b"x-request-id")
    return value if value and _SANE_ID.fullmatch(value) else None


def _content_length(scope: Scope) -> int:
    value = _header(scope, b"content-length") or "0"
    # The server already refused what is no number; an absurd one is over every limit.
    return int(value) if value.isdecimal() and len(value) <= _LENGTH_DIGITS else 1 << 63


def _header(scope: Scope, name: bytes) -> str | None:
    return next((v.decode("latin-1") for k, v in scope["headers"] if k == name), None)
