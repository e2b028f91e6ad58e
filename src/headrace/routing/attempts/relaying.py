"""Passes a request on to an upstream as it came, and its answer back as it comes."""

import time
from collections.abc import Callable, Collection

from headrace.endpoints import Relayed, RelayRequest
from headrace.errors import UnsupportedParameterError
from headrace.routing.attempts.tries import Retrying, Tries
from headrace.routing.attempts.whole_answer import collect, require_events
from headrace.routing.attempts.whole_events import WholeEvents, has_event
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.health.sent import Sent
from headrace.routing.outcome import Outcome, judge_error, sentence
from headrace.routing.places import NOBODY, Place, Places, WorkerPlace
from headrace.routing.upstream.errors import UpstreamBrokenError
from headrace.routing.upstream.relay import UpstreamRelay
from headrace.routing.upstream.relay_body import with_fields
from headrace.routing.upstream.upstream import Upstream

PIECES_A_COUNT = 16


async def relay(request: RelayRequest, shared: Retrying, tries: Tries) -> Relayed:
    """The answer of the first upstream that begins one, or that has one if it is not streamed."""
    place = await tries.first(_unable(request, shared.places))
    while True:
        sent = shared.places.members.begin(place.endpoint, request.num_tokens, time.monotonic())
        try:
            return await _begun(request, place, sent)
        except BaseException as error:
            now = time.monotonic()
            # A whole answer's first byte comes with its last: no silence before it is too long.
            verdict = judge_error(error, is_hanging=request.is_stream and sent.is_hanging(now))
            sent.end(verdict.outcome, now, sentence(error))
            unable = _unable(request, shared.places)
            following = (
                await tries.after(place, verdict, unable=unable) if verdict.outcome else None
            )
            if following is None:
                raise
            place = following


def _unable(request: RelayRequest, places: Places) -> Collection[Endpoint]:
    """The upstreams that cannot go on with an answer; nobody, where none can: one shall say so."""
    if not request.resumes:
        return NOBODY
    unable = {place.endpoint for place in places if not _takes_tokens(place)}
    return unable if len(unable) < len(list(places)) else NOBODY


def _takes_tokens(place: Place) -> bool:
    return isinstance(place, WorkerPlace) or place.upstream.takes_tokens


async def _begun(request: RelayRequest, place: Place, sent: Sent) -> Relayed:
    assert not isinstance(place, WorkerPlace), "only upstreams are relayed to"
    upstream = place.upstream
    body, has_token_ids = await _body(request, upstream)
    answer = await upstream.relay(
        request.path,
        body,
        is_stream=request.is_stream,
        deadline=request.deadline,
        request_id=request.request_id,
        trace=request.trace,
    )
    try:
        if request.is_stream:
            await require_events(answer, upstream)
            stream = RelayedStream(answer, sent, upstream, has_token_ids=has_token_ids)
            await stream.wait_for_first()
            return stream
        return await collect(answer, sent, upstream)
    except BaseException:
        await answer.aclose()
        raise


async def _body(request: RelayRequest, upstream: Upstream) -> tuple[bytes, bool]:
    """The client's own bytes where nothing must differ; whether token ids are asked for."""
    name, dialect = await upstream.known()
    if request.resumes and dialect.resumes != "tokens":
        raise UnsupportedParameterError(
            upstream.refusals.sentence("it cannot go on with what was answered elsewhere"),
            param="answered",
        )
    adds_token_ids = request.adds_token_ids and dialect.resumes == "tokens"
    fields: dict[str, object] = {}
    if name != request.model:
        fields["model"] = name
    if request.adds_usage:
        fields["stream_options"] = {"include_usage": True}
    if adds_token_ids:
        fields["return_token_ids"] = True
    return (with_fields(request.body, fields) if fields else request.body), adds_token_ids


class RelayedStream:
    """The events of an answer, whole ones only; it is over when the upstream says that it is."""

    def __init__(
        self, answer: UpstreamRelay, sent: Sent, upstream: Upstream, *, has_token_ids: bool
    ) -> None:
        self.content_type = answer.content_type
        self.has_token_ids = has_token_ids
        self._answer = answer
        self._sent = sent
        self._upstream = upstream
        self._events = WholeEvents(upstream.refusals)
        self._first = b""
        self._uncounted = 0
        self._fault: BaseException | None = None  # of whoever takes the pieces
        self._is_paused = False
        self._is_closed = False

    async def wait_for_first(self) -> None:
        """Until an event is there; raises what kept it from coming."""
        while not self._has_event():
            is_over = await self._answer.forward(self._take_first)
            self._raise_if_broken(is_over=is_over)
        self._sent.first_byte(time.monotonic())

    async def forward(self, take: Callable[[bytes], bool]) -> bool:
        """See `Relayed`. Raises in the middle when the upstream fails: nothing is tried again."""
        try:
            return self._is_closed or await self._forward(take)
        except BaseException as error:
            verdict = judge_error(error if error is not self._fault else GeneratorExit())
            self._end(verdict.outcome, sentence(error))
            await self._answer.aclose()
            raise

    async def aclose(self) -> None:
        if not self._is_closed:
            self._end(None)
            await self._answer.aclose()

    async def _forward(self, take: Callable[[bytes], bool]) -> bool:
        if self._first:
            first, self._first = self._first, b""
            self._give(first, take)
            if self._is_paused:
                return False
        is_over = False
        while not self._events.is_done:
            self._raise_if_broken(is_over=is_over)
            self._is_paused = False
            is_over = await self._answer.forward(self._passing_on_to(take))
            if self._is_paused:
                return False
        self._answer.finish()
        self._end("success")
        return True

    def _passing_on_to(self, take: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
        events = self._events

        def take_piece(piece: bytes) -> bool:
            whole = events.feed(piece)
            self._count()
            if whole:
                self._give(whole, take)
            return not (self._is_paused or events.is_done or events.error)

        return take_piece

    def _give(self, whole: bytes, take: Callable[[bytes], bool]) -> None:
        try:
            self._is_paused = not take(whole)
        except BaseException as error:
            self._fault = error
            raise

    def _take_first(self, piece: bytes) -> bool:
        self._first = self._events.feed(piece)  # a comment alone begins no answer, and may go
        return not (self._first or self._events.error)

    def _has_event(self) -> bool:
        try:
            return has_event(self._first)
        except ValueError as error:
            raise UpstreamBrokenError(self._upstream.refusals.sentence(str(error))) from None

    def _raise_if_broken(self, *, is_over: bool) -> None:
        if self._events.error is not None:
            raise self._events.error
        if is_over and not self._events.is_done:
            complaint = "its answer ended before it was whole"
            raise UpstreamBrokenError(self._upstream.refusals.sentence(complaint))

    def _count(self) -> None:
        self._uncounted += 1
        if self._uncounted == PIECES_A_COUNT:
            self._sent.grow(PIECES_A_COUNT)
            self._uncounted = 0

    def _end(self, outcome: Outcome | None, reason: str | None = None) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._sent.end(outcome, time.monotonic(), reason)
