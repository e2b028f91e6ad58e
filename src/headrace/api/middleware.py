"""The onion around every route, read top to bottom: the first class is the outermost.

Exchanges -> AccessLog -> Faults -> BodyLimit -> routes

Plain ASGI, so that streams stream through it. Only the outermost looks at what goes out, so that a
message is handed on once; the middle of a stream passes by it too, see `connection`.
"""

import asyncio
import re
import time

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.api.access_lines import AccessLine, AccessLines
from headrace.api.connection import connection_of, leave_connection
from headrace.api.errors import error_response
from headrace.api.exchange import Exchange, Headers, attach, exchange_of, new_id
from headrace.errors import BodyTimeoutError, BodyTooLargeError, HeadraceError, UnavailableError
from headrace.telemetry.metrics import Metrics

log = structlog.get_logger("headrace.api")

CLIENT_LEFT = 499
BODY_TIMEOUT = 30.0  # seconds for a body to arrive
BODIES_ARRIVING = 16  # times `max_bytes`: what all bodies on their way may hold
_SANE_ID = re.compile(rb"[A-Za-z0-9._:+/=@-]{1,128}")
_LENGTH_DIGITS = 19  # of 2**63
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Exchanges:
    """Gives every request its exchange, and every answer an id and the headers of all answers."""

    def __init__(self, app: ASGIApp, *, headers: Headers) -> None:
        self.app = app
        self.headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "this app has neither a lifespan nor websockets"
        request_headers = dict(reversed(scope["headers"]))  # of several the first
        request_id = _sane(request_headers.get(b"x-request-id")) or new_id()
        exchange = Exchange(
            request_id=request_id,
            request_headers=request_headers,
            headers=(*self.headers, (b"x-request-id", request_id.encode())),
        )
        attach(scope, exchange)

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *exchange.headers]
                await send(message)
                exchange.status = message["status"]  # not of a head that was refused
            else:
                exchange.num_bytes += len(message.get("body", b""))
                await send(message)

        try:
            await self.app(scope, receive, send_on)
        finally:
            leave_connection(scope)


class AccessLog:
    """One count per request when it has ended, and a moment later one line; never a prompt."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics
        self._lines = AccessLines()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.metrics.in_flight += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.metrics.in_flight -= 1
            self._count(scope, exchange_of(scope))

    def _count(self, scope: Scope, exchange: Exchange) -> None:
        seconds = time.monotonic() - exchange.arrived
        status = CLIENT_LEFT if exchange.client_left else exchange.status or 500
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = exchange.route or "unmatched"
        self.metrics.http_request(method=method, route=route, status=status, seconds=seconds)
        self._lines.add(AccessLine(scope["method"], scope["path"], exchange, status, seconds))


class Faults:
    """Answers what no route answered: refusals of the layers below, and faults of ours."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        try:
            await self.app(scope, receive, send)
        except ClientDisconnect:
            exchange.client_left = True
        except Exception as exc:  # whatever failed, the caller gets an answer
            if exchange.status is not None:
                raise
            if not isinstance(exc, HeadraceError):
                log.exception("request.fault", request_id=exchange.request_id)
            await error_response(exc, exchange)(scope, receive, send)


class BodyLimit:
    """Bounds the bodies that arrive: each one's size and time, and the bytes of all together.

    A body counts until it is whole. What is made of it is bounded by the engine's queue; where it
    is passed on, it is held until the upstream begins to answer, which its `max_connections` bound,
    and longer only within the bytes that `KeptBytes` allows.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, timeout: float = BODY_TIMEOUT) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.timeout = timeout
        self.num_arriving = 0  # bytes of all bodies that are not whole yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        if _content_length(exchange) > self.max_bytes:
            raise self._too_large()
        connection = connection_of(scope)
        exchange.body = None if connection is None else connection.take_body()
        if exchange.body is not None:
            if len(exchange.body) > self.max_bytes:
                raise self._too_large()
            await self.app(scope, receive, send)
            return
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


def _sane(request_id: bytes | None) -> str | None:
    return request_id.decode() if request_id and _SANE_ID.fullmatch(request_id) else None


def _content_length(exchange: Exchange) -> int:
    value = exchange.header("content-length") or "0"
    # The server already refused what is no number; an absurd one is over every limit.
    return int(value) if value.isdecimal() and len(value) <= _LENGTH_DIGITS else 1 << 63
