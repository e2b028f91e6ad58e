"""Goes on with a stream whose upstream has died in the middle; the client sees one answer.

Only then is the body read that was passed on, and it must be one that a model of ours could have
been asked: what else an upstream may understand, nobody here can ask another one to go on with.
"""

from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

import msgspec

from headrace.api.merge import closable
from headrace.api.openai.parsing import Parsed, Posted
from headrace.api.openai.relay_meter import RelayMeter
from headrace.api.openai.sent import Sent, read_sent
from headrace.api.openai.stream import Dialect, OpenAIWire
from headrace.api.sending import Sender
from headrace.endpoints import Migration, Router
from headrace.engine.stream import Forwarding
from headrace.errors import HeadraceError
from headrace.generation import Answered, Chunk, GenerationRequest, ModelInfo, Usage


class Continuation:
    """The rest of one answer."""

    def __init__(
        self, request: GenerationRequest, sent: Sent, wire: OpenAIWire, meter: RelayMeter
    ) -> None:
        self._request = request
        self._wire = wire
        self._meter = meter
        self._is_whole = len(sent.finished) == request.sampling.n
        self._finish_reason = "stop"
        self._usages: list[Usage] = []
        for chunk in sent.chunks:  # as if this wire had written them
            wire.event(chunk)

    async def answer(self, router: Router, sender: Sender) -> bytes:
        """Send what follows; gives the last of it."""
        if not self._is_whole:
            async with aclosing(closable(router.go_on(self._request))) as chunks:
                await sender.forward(cast("Forwarding", chunks).forward, self._event)
        self._meter.end(self._finish_reason, self._usage)
        return self._wire.ending(self._usage)

    @property
    def _usage(self) -> Usage | None:
        """Nobody has told that of choices which ended before."""
        if len(self._usages) < self._request.sampling.n:
            return None
        return Usage(
            prompt_tokens=self._usages[0].prompt_tokens,
            completion_tokens=sum(usage.completion_tokens for usage in self._usages),
            cached_tokens=self._usages[0].cached_tokens,
        )

    def _event(self, chunk: Chunk) -> bytes:
        self._meter.count_tokens(len(chunk.token_ids) or 1)
        if chunk.finish_reason is not None:
            self._finish_reason = chunk.finish_reason
        if chunk.usage is not None:
            self._usages.append(chunk.usage)
        return self._wire.event(chunk)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A stream that broke off, and how it may go on.

    `is_ours`: its upstream was one of us, so that another one may take its tokens.
    """

    parsed: Parsed
    dialect: Dialect
    info: ModelInfo
    migration: Migration
    is_ours: bool


def broken_of(posted: Posted, router: Router, *, is_ours: bool) -> Broken | None:
    """None of what a model of ours could not be asked, such as calls of tools."""
    try:
        parsed = posted.parse()
    except HeadraceError:
        return None
    if router.migration == "off" or len(parsed.requests) != 1:
        return None
    return Broken(
        parsed=parsed,
        dialect=posted.kind.dialect,
        info=router.info,
        migration=router.migration,
        is_ours=is_ours,
    )


def continuation_of(broken: Broken, kept: bytes, meter: RelayMeter) -> Continuation | None:
    """None where nobody can, or may, go on with it. Runs in any thread: it shares nothing."""
    (request,) = broken.parsed.requests
    sent = read_sent(kept, request)
    if sent is None:
        return None
    tells_tokens = broken.is_ours and sent.tells_tokens
    rest = what_remains(request, sent, tells_tokens=tells_tokens)
    if rest is None or (rest.answered_text is not None and broken.migration != "text"):
        return None
    return Continuation(rest, sent, _wire(broken, sent), meter)


def what_remains(
    request: GenerationRequest, sent: Sent, *, tells_tokens: bool
) -> GenerationRequest | None:
    """The request for what the client does not have yet; None where nobody can be asked for it."""
    num_choices, earlier = request.sampling.n, request.answered
    answered = tuple(sent.answered(index) for index in range(num_choices))
    if not any(answered):
        return request
    if request.sampling.echo:  # where the prompt ends and the answer begins, nobody told
        return None
    if tells_tokens:
        joined = map(_joined, earlier or (None,) * num_choices, answered)
        return msgspec.structs.replace(request, answered=tuple(joined))
    if earlier or num_choices > 1:
        return None
    return msgspec.structs.replace(request, answered_text=sent.text(0))


def _joined(earlier: Answered | None, later: Answered | None) -> Answered | None:
    """What the client had when its request came here, and what it got since."""
    if earlier is None or later is None or earlier.is_finished or later.is_finished:
        return earlier if later is None else later
    return Answered(
        earlier.token_ids + later.token_ids, earlier.num_characters + later.num_characters
    )


def _wire(broken: Broken, sent: Sent) -> OpenAIWire:
    """One that writes as the upstream did."""
    info, parsed = broken.info, broken.parsed
    return OpenAIWire(
        broken.dialect,
        sent.head,
        msgspec.structs.replace(info, fingerprint=sent.fingerprint or info.fingerprint),
        include_usage=parsed.include_usage,
        return_token_ids=parsed.return_token_ids,
    )
