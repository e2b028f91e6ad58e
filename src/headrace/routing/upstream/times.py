"""How long one request may take, as moments on the monotonic clock."""

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType

from headrace.errors import DeadlineError, HeadraceError
from headrace.routing.upstream.errors import UpstreamUnreachableError
from headrace.routing.upstream.refusals import Refusals

MIN_REMAINING = 0.001  # seconds, as the least that a server reads as a time
_RESOLUTION = 0.01  # seconds by which a loop's timers may be early


@dataclass(frozen=True, slots=True)
class Times:
    """`first_byte_at` is no later than the deadline; `idle` is in seconds."""

    deadline: float | None
    first_byte_at: float
    idle: float

    @classmethod
    def starting(
        cls, now: float, deadline: float | None, first_byte: float, idle: float
    ) -> "Times":
        """For a request sent now. Raises when its time is over already."""
        if deadline is None:
            return cls(None, now + first_byte, idle)
        if deadline <= now:
            raise DeadlineError("the request's deadline has passed")
        return cls(deadline, min(deadline, now + first_byte), idle)

    def remaining(self, now: float) -> float | None:
        """Seconds that the upstream may take, None: as many as it likes."""
        return None if self.deadline is None else max(MIN_REMAINING, self.deadline - now)

    def late(self, now: float, refusals: Refusals) -> HeadraceError:
        """Why an answer that has not begun, or pauses, is waited for no longer."""
        if self.deadline is not None and now + _RESOLUTION >= self.deadline:
            return DeadlineError("the request's deadline has passed")
        return UpstreamUnreachableError(refusals.sentence("it does not answer in time"))


class InTime:
    """Limits what comes before the first byte."""

    def __init__(self, times: Times, refusals: Refusals) -> None:
        self._times = times
        self._refusals = refusals
        self._timeout = asyncio.timeout_at(times.first_byte_at)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise self._times.late(time.monotonic(), self._refusals) from None
