"""One generation on its way through the endpoints: sent, retried before it has begun, moved after.

The client sees one answer. What an endpoint did is told to the members; errors of writing to the
client are nobody's outcome.
"""

import time
from collections.abc import AsyncIterator, Collection
from typing import Self, cast

from headrace.endpoints import Migration
from headrace.engine.stream import Forwarding, Take
from headrace.errors import WorkerDiedError
from headrace.generation import Chunk, GenerationRequest
from headrace.routing.attempts.moving import Moving
from headrace.routing.attempts.resumable import Resumable
from headrace.routing.attempts.tries import Retrying, Tries
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.health.sent import Sent
from headrace.routing.outcome import LEFT, SUCCESS, Verdict, sentence
from headrace.routing.places import Place, WorkerPlace

TOKENS_A_COUNT = 16  # of an answer; counting each would cost as much as passing it on


class RoutedGeneration:
    """Its chunks, one by one or as they arrive. Sent when the first is asked for."""

    def __init__(
        self, shared: Retrying, tries: Tries, request: GenerationRequest, migration: Migration
    ) -> None:
        self._shared = shared
        self._tries = tries
        self._request = request
        self._progress = progress = Resumable(request)
        self._moving = Moving(request, progress, migration)
        self._place: Place | None = None
        self._sent: Sent | None = None
        self._chunks: AsyncIterator[Chunk] | None = None
        self._fault: BaseException | None = None  # of whoever takes the chunks
        self._is_on_trial = False
        self._has_killed = False
        self._is_unanswered = True  # by the endpoint that has it now
        self._uncounted = 0
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        while not self._is_closed:
            try:
                return self._noted(await anext(self._chunks or await self._begin()))
            except StopAsyncIteration:
                self._end(SUCCESS)
                raise
            except BaseException as error:  # noqa: BLE001 - each is judged, and raised if it is one
                await self._go_on_after(error)
        raise StopAsyncIteration

    async def forward(self, take: Take) -> bool:
        """See `headrace.engine.stream.Forwarding`."""

        def note(chunk: Chunk) -> bool:
            known = self._noted(chunk)
            try:
                return take(known)
            except BaseException as error:
                self._fault = error
                raise

        while not self._is_closed:
            try:
                is_over = await _forward(self._chunks or await self._begin(), note)
            except BaseException as error:  # noqa: BLE001 - each is judged, and raised if it is one
                await self._go_on_after(error)
            else:
                if is_over:
                    self._end(SUCCESS)
                return is_over
        return True

    async def aclose(self) -> None:
        chunks, is_closed = self._chunks, self._is_closed
        self._end(LEFT)
        if chunks is not None and not is_closed:
            await _close(chunks)

    # One try

    async def _begin(self) -> AsyncIterator[Chunk]:
        # An upstream's fault is no sign that the request kills workers.
        if self._has_killed and self._progress.is_suspect and not self._is_on_trial:
            await self._shared.places.trial.acquire()
            self._is_on_trial = True
            self._place = None  # it may have gone meanwhile
        if self._place is None:
            self._place = await self._tries.first(self._unable())
        place, members = self._place, self._shared.places.members
        num_tokens = self._tries.key.num_tokens
        self._sent = members.begin(place.endpoint, num_tokens, time.monotonic())
        self._is_unanswered = True
        is_worker, tells_tokens = isinstance(place, WorkerPlace), self._moving.tells_tokens(place)
        self._progress.begin_try(tells_tokens=tells_tokens, is_trusted=is_worker)
        model = place.worker.model if isinstance(place, WorkerPlace) else place.upstream
        self._chunks = model.generate(self._moving.request_for(place))
        return self._chunks

    def _noted(self, chunk: Chunk) -> Chunk:
        self._uncounted += len(chunk.token_ids) or 1
        if self._uncounted >= TOKENS_A_COUNT or self._is_unanswered or self._is_on_trial:
            self._count()
        return self._progress.note(chunk)

    def _count(self) -> None:
        assert self._sent is not None
        if self._is_on_trial:  # something came of it
            self._end_trial()
        if self._is_unanswered:
            self._is_unanswered = False
            self._sent.first_byte(time.monotonic())
        self._sent.grow(self._uncounted)
        self._uncounted = 0

    def _end_trial(self) -> None:
        if self._is_on_trial:
            self._is_on_trial = False
            self._shared.places.trial.release()

    def _leave(self, verdict: Verdict, reason: str | None = None) -> None:
        """This try is over."""
        self._end_trial()
        self._chunks = None
        sent, self._sent = self._sent, None
        if sent is not None:
            sent.end(verdict.outcome, time.monotonic(), reason)

    def _end(self, verdict: Verdict) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._leave(verdict)

    # After one that failed

    async def _go_on_after(self, error: BaseException) -> None:
        """Find the next place, or raise this error as the answer's end."""
        place, chunks = self._place, self._chunks
        is_ours = isinstance(error, Exception) and error is not self._fault
        if place is None or self._sent is None or not is_ours:
            await self.aclose()
            raise error
        is_hanging = self._sent.is_hanging(time.monotonic())
        verdict = self._shared.places.judge(place, error, is_hanging=is_hanging)
        self._leave(verdict, sentence(error))
        if chunks is not None:
            await _close(chunks)
        try:
            self._place = await self._next_place(place, error, verdict)
        except BaseException:
            self._is_closed = True
            raise

    async def _next_place(self, place: Place, error: BaseException, verdict: Verdict) -> Place:
        is_death = isinstance(error, WorkerDiedError) and isinstance(place, WorkerPlace)
        self._has_killed = self._has_killed or is_death
        if is_death or self._progress.has_begun:
            self._progress.note_death()
            if self._progress.is_condemned:
                raise self._progress.died_of_it(sentence(error)) if is_death else error
        if is_death:
            following = await self._tries.at_once(self._unable())
        elif self._progress.has_begun:
            following = await self._moved(place, verdict)
        else:
            following = await self._tries.after(place, verdict, unable=self._unable())
        if following is None:
            raise self._shared.places.refused() if is_death else error
        if self._progress.has_begun:
            by = self._moving.how_to(following)
            self._shared.events.moved(self._request.request_id, by, sentence(error))
        return following

    async def _moved(self, place: Place, verdict: Verdict) -> Place | None:
        """An answer that the client has the beginning of is not given up for a queue's sake."""
        if verdict.retry == "never":
            return None
        unable = {*self._unable(), place.endpoint}
        if self._shared.places.awaits(unable):  # better than an endpoint that has just failed
            following = await self._tries.at_once(unable)
            if following is not None:
                return following
        anywhere = Verdict(verdict.outcome, "anywhere", verdict.retry_after)
        return await self._tries.after(place, anywhere, unable=self._unable(), is_free=True)

    def _unable(self) -> Collection[Endpoint]:
        return self._moving.unable(self._shared.places)


async def _forward(chunks: AsyncIterator[Chunk], take: Take) -> bool:
    if hasattr(chunks, "forward"):
        return await cast("Forwarding", chunks).forward(take)
    async for chunk in chunks:
        if not take(chunk):
            return False
    return True


async def _close(chunks: AsyncIterator[Chunk]) -> None:
    if (close := getattr(chunks, "aclose", None)) is not None:
        await close()
