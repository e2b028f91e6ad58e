"""What an upstream's refusals mean to those who asked us. Trusts nothing that it says.

Statuses decide; a code, as a Headrace sends them, only says more where it fits the status.
"""

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from headrace.errors import (
    BodyTooLargeError,
    ContextLengthError,
    DeadlineError,
    DrainingError,
    HeadraceError,
    InvalidRequestError,
    NotReadyError,
    QueueFullError,
    UnsupportedParameterError,
    WorkerDiedError,
)
from headrace.routing.upstream.errors import (
    UpstreamBusyError,
    UpstreamFaultError,
    UpstreamRefusedError,
)

MAX_MESSAGE = 500  # characters of an upstream's sentence that are passed on
MAX_RETRY_AFTER = 3600.0  # seconds
_CONTEXT_WORDS = ("maximum context length", "exceed_context_size", "context_length_exceeded")
_FIELD = re.compile(r"[A-Za-z0-9_.\[\]-]{1,80}")
_FAULT = 500
_CLIENT_STATUSES = frozenset({400, 413, 422})
_BUSY_STATUSES = frozenset({408, 429, 503})
_NAMED: Mapping[object, type[HeadraceError]] = {
    kind.code: kind
    for kind in (
        ContextLengthError,
        UnsupportedParameterError,
        QueueFullError,
        NotReadyError,
        DrainingError,
        DeadlineError,
        WorkerDiedError,
    )
}


class Refusal(msgspec.Struct, kw_only=True):
    """What servers write about an error: OpenAI's object, or its fields outside of one."""

    message: Any = None
    detail: Any = None  # FastAPI's word
    type: Any = None
    param: Any = None
    code: Any = None
    error: Any = None

    @property
    def text(self) -> str:
        told = (self.message, self.detail, self.error)
        return next((each for each in told if isinstance(each, str)), "")

    @property
    def field(self) -> str | None:
        """Of the request, where it is named as a field is."""
        is_name = isinstance(self.param, str) and _FIELD.fullmatch(self.param)
        return str(self.param) if is_name else None

    @property
    def is_context_length(self) -> bool:
        said = f"{self.text} {self.type} {self.code}"
        return any(words in said for words in _CONTEXT_WORDS)


class Refusals:
    """Makes errors of what one upstream says; `secret` is struck out of it."""

    def __init__(self, label: str, secret: str | None) -> None:
        self._label = label
        self._secret = secret

    def of_answer(
        self, status: int, headers: Mapping[str, str], body: bytes, now: float
    ) -> HeadraceError:
        """The error of a status that is no success; names of headers are in lower case.

        `now` is in seconds since 1970.
        """
        refusal = read_refusal(body)
        named = _NAMED.get(refusal.code) if isinstance(refusal.code, str) else None
        retry_after = read_retry_after(headers.get("retry-after"), now)
        if named is not None and named.status != status:
            named = None
        return self._error(status, named, refusal, retry_after)

    def of_event(self, body: bytes) -> HeadraceError:
        """The error that an event of a stream tells; some put an HTTP status into its code."""
        refusal = read_refusal(body)
        named = _NAMED.get(refusal.code) if isinstance(refusal.code, str) else None
        is_status = isinstance(refusal.code, int) and refusal.code >= 400  # noqa: PLR2004  # HTTP's
        status = refusal.code if is_status else _FAULT
        return self._error(status, named, refusal, None)

    def sentence(self, text: str) -> str:
        """What may be shown to a client: one bounded line of it, without the key."""
        if self._secret:
            text = text.replace(self._secret, "***")
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return f"upstream {self._label}: {line[:MAX_MESSAGE]}"

    def _error(
        self,
        status: int,
        named: type[HeadraceError] | None,
        refusal: Refusal,
        retry_after: float | None,
    ) -> HeadraceError:
        kind = named or _kind(status, refusal)
        if kind is UpstreamRefusedError:
            # Its words about our key, or the address that it points to, are not for clients.
            return kind(self.sentence(f"it refused us with status {status}"))
        message = self.sentence(refusal.text or f"it answered with status {status}")
        return kind(message, param=refusal.field, retry_after=retry_after)


def read_refusal(body: bytes) -> Refusal:
    """What is said about an error; nothing where it is a page of something else."""
    try:
        outer = _decoder.decode(body)
        if isinstance(outer.error, dict):
            return msgspec.convert(outer.error, Refusal)
    except (ValueError, RecursionError):
        return Refusal()
    return outer


def read_retry_after(header: str | None, now: float) -> float | None:
    """Seconds from `now`, out of seconds or an HTTP date; None where it is neither."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        seconds = _seconds_until(header, now)
    return min(seconds, MAX_RETRY_AFTER) if math.isfinite(seconds) and seconds >= 0 else None


def _seconds_until(date: str, now: float) -> float:
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - now)
    except (ValueError, OverflowError):
        return math.nan


def _kind(status: int, refusal: Refusal) -> type[HeadraceError]:
    if status in _CLIENT_STATUSES:
        if refusal.is_context_length:
            return ContextLengthError
        return BodyTooLargeError if status == BodyTooLargeError.status else InvalidRequestError
    if status in _BUSY_STATUSES:
        return UpstreamBusyError
    return UpstreamFaultError if status >= _FAULT else UpstreamRefusedError


_decoder = msgspec.json.Decoder(Refusal)
