"""The body of one answer, as its bytes come, watched by one timer. Knows no JSON.

The timer also runs while nobody reads: a deadline closes the connection on time. Silence of the
upstream counts only while somebody waits for it.
"""

import asyncio
from collections.abc import Callable, Mapping

from headrace.errors import HeadraceError
from headrace.routing.http.answer import Answer, Take
from headrace.routing.http.errors import HttpError
from headrace.routing.upstream.errors import UpstreamBrokenError
from headrace.routing.upstream.refusals import Refusals
from headrace.routing.upstream.times import Times
from headrace.routing.upstream.transport import translated

LINGER = 1.0  # seconds in which a whole answer's connection may be handed back


class Body:
    """Has one reader. Either `close` or `finish` ends it, and both may be called again."""

    def __init__(
        self,
        answer: Answer,
        times: Times,
        refusals: Refusals,
        *,
        on_end: Callable[["Body"], None],
    ) -> None:
        self._answer = answer
        self._times = times
        self._refusals = refusals
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._silent_after: float | None = None  # while somebody waits
        self._has_begun = False
        self._error: HeadraceError | None = None
        self._is_closed = False
        self._timer = self._loop.call_at(times.first_byte_at, self._check)

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        """By names in lower case."""
        return self._answer.headers

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_encoded(self) -> bool:
        return self.headers.get("content-encoding", "identity").lower() != "identity"

    @property
    def is_over(self) -> bool:
        """Whether all of it has come, which is so already when the last piece is taken."""
        return self._answer.is_over

    async def read(self) -> bytes:
        """The next bytes, as many as there are; none at the end."""
        self._silent_after = self._next_silence()
        try:
            piece = await self._answer.read()
        except HttpError as error:
            raise self._error or translated(error, self._refusals) from None
        finally:
            self._silent_after = None
        if self._error is not None:
            raise self._error
        if not self._has_begun:
            self._begin()
        return piece

    async def read_all(self, max_bytes: int) -> bytes:
        """The whole body; one over the bound is broken."""
        pieces, size = [], 0
        while piece := await self.read():
            size += len(piece)
            if size > max_bytes:
                raise UpstreamBrokenError(self._refusals.sentence("its answer is too large"))
            pieces.append(piece)
        return b"".join(pieces)

    async def forward(self, take: Take) -> bool:
        """Give `take` each piece, in the call that brings it, see `Answer.forward`.

        A reader that fails loses the connection.
        """
        if self._error is not None:
            raise self._error

        def watch(piece: bytes) -> bool:
            self._silent_after = self._loop.time() + self._times.idle
            if not self._has_begun:
                self._begin()
            return take(piece)

        self._silent_after = self._next_silence()
        try:
            return await self._answer.forward(watch)
        except HttpError as error:
            raise self._error or translated(error, self._refusals) from None
        except BaseException:
            self.close()
            raise
        finally:
            self._silent_after = None

    def finish(self) -> None:
        """Nothing more is needed: keep the connection, if the body ends soon."""
        if self._is_closed:
            return
        self._end()
        if not self._answer.is_over:
            self._timer = self._loop.call_later(LINGER, self.abort)

    def close(self) -> None:
        """Close the connection at once, unless the body has ended: the upstream is to notice."""
        if not self._is_closed:
            self.abort()

    def abort(self) -> None:
        """Close the connection, even one that may be kept."""
        self._end()
        self._answer.abort()

    def _end(self) -> None:
        self._timer.cancel()
        if not self._is_closed:
            self._is_closed = True
            self._on_end(self)

    def _begin(self) -> None:
        self._has_begun = True
        self._timer.cancel()
        if not (self._is_closed or self._answer.is_over):  # else nothing can be late
            self._check()

    def _next_silence(self) -> float:
        if not self._has_begun:
            return self._times.first_byte_at
        return self._loop.time() + self._times.idle

    def _check(self) -> None:
        """Fail what is late, or look again when it may be."""
        now = self._loop.time()
        moments = (self._times.deadline, self._silent_after)
        if any(moment is not None and moment <= now for moment in moments):
            self._fail(self._times.late(now, self._refusals))
            return
        known = [moment for moment in moments if moment is not None]
        self._timer = self._loop.call_at(min([*known, now + self._times.idle]), self._check)

    def _fail(self, error: HeadraceError) -> None:
        self._error = error
        self.close()
