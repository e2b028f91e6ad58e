"""HTTP to one server: answers as bytes, events as they come, every failure a HeadraceError.

Knows nothing of what is asked.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

import httpx
import msgspec

from headrace.errors import HeadraceError, InvalidRequestError, UnavailableError, from_code

_CONNECT_TIMEOUT = 10.0  # seconds
_READ_TIMEOUT = 30.0  # seconds, of an answer that takes the server no work

T = TypeVar("T")
Explain = Callable[[httpx.Response], HeadraceError]
"""Makes of a refusal the error to raise."""


class UnreachableError(UnavailableError):
    """Nothing answers there, or what answers is no server of ours."""

    code = "unreachable"


class ConnectionLostError(UnreachableError):
    """The connection broke before the answer was whole."""

    code = "connection_lost"


class Event(NamedTuple):
    """One server-sent event; `name` is "message" where the server gives none."""

    name: str
    data: bytes


class Connection:
    """One server. `on_answer` is told the JSON of every answer, refusal and event as it came."""

    def __init__(
        self,
        url: str,
        *,
        on_answer: Callable[[bytes], None] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """An OpenAI base URL, with its /v1, will do."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self._on_answer = on_answer or (lambda _: None)
        try:
            self._http = httpx.Client(
                base_url=self.url, transport=transport, timeout=_CONNECT_TIMEOUT
            )
        except httpx.InvalidURL as error:
            raise UnreachableError(f"{url} is no URL: {error}") from None

    def close(self) -> None:
        self._http.close()

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        read_timeout: float | None = _READ_TIMEOUT,
        explain: Explain | None = None,
    ) -> bytes:
        """The body of a success; what is none raises what `explain`, or else `refusal`, makes."""
        with self._reached():
            response = self._http.request(method, path, **_options(body, read_timeout))
        self._check(response, explain)
        self._on_answer(response.content)
        return response.content

    @contextmanager
    def stream(
        self, method: str, path: str, body: object = None, *, read_timeout: float | None = None
    ) -> Iterator[Iterator[Event]]:
        """The events of an answer, while the block lasts; they end when the server ends them."""
        options = _options(body, read_timeout)
        with ExitStack() as stack:
            with self._reached():
                response = stack.enter_context(self._http.stream(method, path, **options))
                if not response.is_success:
                    response.read()
            self._check(response)
            yield self._events(response)

    def _events(self, response: httpx.Response) -> Iterator[Event]:
        with self._reached():
            for event in _parse(_lines(response.iter_bytes())):
                self._on_answer(event.data)
                yield event

    def _check(self, response: httpx.Response, explain: Explain | None = None) -> None:
        """Raise what is no success."""
        if not response.is_success:
            error = (explain or refusal)(response)
            if not isinstance(error, UnreachableError):  # only what a server of ours may say
                self._on_answer(response.content)
            raise error

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol):
            raise UnreachableError(
                f"no server answers at {self.url}; start one with `headrace serve smollm2`"
            ) from None
        except httpx.RequestError as error:
            raise ConnectionLostError(f"the connection to {self.url} broke: {error}") from None


def read(body: bytes, kind: type[T]) -> T:
    """Understand an answer; fields that a newer server adds are passed over."""
    try:
        return msgspec.json.decode(body, type=kind)
    except ValueError as error:  # no JSON, not of that shape, or no UTF-8
        raise UnreachableError(
            f"not the answer of a Headrace server; is --url right? ({error})"
        ) from None


class _Detail(msgspec.Struct, frozen=True):
    message: str
    code: str | int | None = None  # other servers of OpenAI's API give numbers
    param: str | None = None


class _Refused(msgspec.Struct, frozen=True):
    error: _Detail


def refusal(response: httpx.Response) -> HeadraceError:
    """The error that the server raised."""
    try:
        detail = msgspec.json.decode(response.content, type=_Refused).error
    except ValueError:
        return UnreachableError(
            f"{response.status_code} from {response.url}: not the answer of a Headrace or OpenAI"
            " server; is --url right?"
        )
    seconds = response.headers.get("Retry-After", "")
    retry_after = float(seconds) if seconds.isdecimal() else None
    return from_code(str(detail.code), detail.message, param=detail.param, retry_after=retry_after)


def _options(body: object, read_timeout: float | None) -> dict[str, Any]:
    options: dict[str, Any] = {"timeout": httpx.Timeout(_CONNECT_TIMEOUT, read=read_timeout)}
    if body is None:
        return options
    try:
        content = json.dumps(body, allow_nan=False)  # ASCII: what is no UTF-8 the server refuses
    except ValueError as error:
        raise InvalidRequestError(f"this cannot be asked in JSON: {error}") from None
    return options | {"content": content, "headers": {"Content-Type": "application/json"}}


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines that end in a line feed; httpx ends them at U+2028 too, which JSON may hold."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r")


def _parse(lines: Iterable[bytes]) -> Iterator[Event]:
    """Events, each ended by an empty line; one cut short by the end of the stream is none."""
    name, data = "message", list[bytes]()
    for line in lines:
        field, _, value = line.partition(b":")
        match field:
            case b"event":
                name = value.removeprefix(b" ").decode(errors="replace")
            case b"data":
                data.append(value.removeprefix(b" "))
            case b"" if not line:
                if data:
                    yield Event(name, b"\n".join(data))
                name, data = "message", []
