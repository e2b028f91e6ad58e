"""Passes a request on to an upstream, body and all, and its answer back to the client.

An answer that is not streamed is there before any of it goes out, so that the router could try
again. A stream goes out as it comes; where its upstream dies, see `continuation`.
"""

import asyncio
from functools import partial

from headrace.api.exchange import Exchange
from headrace.api.openai.ambiguity import require_one_reading
from headrace.api.openai.continuation import Continuation, broken_of, continuation_of
from headrace.api.openai.keeping import Kept, KeptBytes
from headrace.api.openai.parsing import Posted
from headrace.api.openai.relay_meter import RelayMeter
from headrace.api.openai.relayed_events import RelayedEvents
from headrace.api.openai.relayed_whole import read_whole
from headrace.api.sending import Sender
from headrace.endpoints import Relayed, RelayRequest, Router
from headrace.errors import HeadraceError, InvalidRequestError, NoEndpointError
from headrace.routing.outcome import judge_error
from headrace.routing.upstream.relay_body import with_fields
from headrace.telemetry.metrics import Metrics

BYTES_A_TOKEN = 4  # of a body, roughly


class Relay:
    """One request. Holds nothing of the answer but what it takes to go on with it elsewhere."""

    def __init__(
        self,
        posted: Posted,
        metrics: Metrics,
        router: Router,
        exchange: Exchange,
        sender: Sender,
        *,
        kept_bytes: KeptBytes,
    ) -> None:
        assert exchange.model_id is not None
        self._posted = posted
        self._router = router
        self._exchange = exchange
        self._sender = sender
        self._kept_bytes = kept_bytes
        self._meter = RelayMeter(metrics, exchange.model_id, arrived=exchange.arrived)

    async def answer(self) -> bytes:
        """See `headrace.api.sse.Work`."""
        meter, exchange = self._meter, self._exchange
        try:
            last = await (self._stream() if self._posted.stream else self._whole())
        except BaseException as exc:
            meter.failed(exc)
            raise
        meter.completed()
        exchange.ttft = meter.ttft
        if meter.usage is not None:
            exchange.prompt_tokens = meter.usage.prompt_tokens
            exchange.completion_tokens = meter.usage.completion_tokens
        return last

    async def _whole(self) -> bytes:
        pieces: list[bytes] = []

        def take(piece: bytes) -> bool:
            pieces.append(piece)
            return True

        relayed = await self._router.relay(self._request())
        try:
            while not await relayed.forward(take):
                pass
        finally:
            await relayed.aclose()
        body = b"".join(pieces)
        self._meter.end(*read_whole(body))
        return body

    async def _stream(self) -> bytes:
        num_choices = self._posted.asked.num_choices  # or a refusal, before anything is held
        relayed = await self._router.relay(self._request())
        kept = Kept(self._kept_bytes, forget=self._posted.forget)
        try:
            events = self._events_of(relayed, num_choices, kept)
            if self._can_move(num_choices):
                kept.begin(len(self._posted.body))
            else:
                kept.drop()
            return await self._passed_on(relayed, events)
        finally:
            kept.drop()
            await relayed.aclose()

    async def _passed_on(self, relayed: Relayed, events: RelayedEvents) -> bytes:
        try:
            await self._sender.forward(relayed.forward, partial(self._shown, events))
            events.check_end()
        except HeadraceError as exc:
            error = exc
        else:
            self._meter.end(events.finish_reason, events.usage)
            return events.last
        await relayed.aclose()
        return await self._go_on(error, events, is_ours=relayed.has_token_ids)

    def _events_of(self, relayed: Relayed, num_choices: int, kept: Kept) -> RelayedEvents:
        asked = self._posted.asked
        return RelayedEvents(
            kept,
            num_choices=num_choices,
            hides_usage=not asked.wants_usage,
            hides_token_ids=relayed.has_token_ids and not asked.return_token_ids,
        )

    def _can_move(self, num_choices: int) -> bool:
        """Whether it is of any use to keep the stream."""
        asked = self._posted.asked
        has_several_prompts = num_choices > (asked.n or 1)
        return not (self._router.migration == "off" or asked.calls_tools or has_several_prompts)

    def _shown(self, events: RelayedEvents, piece: bytes) -> bytes:
        self._meter.count(piece)
        return events.take(piece)

    async def _go_on(self, error: HeadraceError, events: RelayedEvents, *, is_ours: bool) -> bytes:
        """Have another endpoint finish a stream, or raise why it has ended."""
        if self._exchange.status is None or judge_error(error).retry == "never":
            raise error
        async with self._kept_bytes.reading:
            rest = await self._rest(events, is_ours=is_ours)
        if rest is None:
            raise error
        try:
            return await rest.answer(self._router, self._sender)
        except (NoEndpointError, InvalidRequestError) as refusal:
            raise error from refusal  # which is what broke the client's stream

    async def _rest(self, events: RelayedEvents, *, is_ours: bool) -> Continuation | None:
        kept = events.kept
        if kept is None:  # and neither is the body
            return None
        broken = broken_of(self._posted, self._router, is_ours=is_ours)
        if broken is None:
            return None
        # Away from the loop, which has other streams to serve: an answer may be long.
        return await asyncio.to_thread(continuation_of, broken, kept, self._meter)

    def _request(self) -> RelayRequest:
        try:
            require_one_reading(self._posted.body)
            return self._read_request()
        except RecursionError:
            raise InvalidRequestError("The body is nested too deeply.") from None

    def _read_request(self) -> RelayRequest:
        posted, asked = self._posted, self._posted.asked
        body, adds_usage = posted.body, posted.stream and not asked.wants_usage
        if adds_usage and asked.stream_options:  # keep the others
            options = {**asked.stream_options, "include_usage": True}
            body, adds_usage = with_fields(body, {"stream_options": options}), False
        return RelayRequest(
            path=posted.kind.path,
            body=body,
            model=asked.model,
            request_id=self._exchange.request_id,
            is_stream=posted.stream,
            deadline=posted.deadline,
            user=asked.user,
            prompt=asked.beginning,
            num_tokens=len(body) // BYTES_A_TOKEN,
            trace=posted.trace,
            adds_usage=adds_usage,
            adds_token_ids=posted.stream,
            resumes=asked.resumes,
        )
