"""Reads of an upstream's whole answer what is counted, and whether it is one."""

import msgspec

from headrace.generation import Usage
from headrace.routing.upstream.errors import UpstreamBrokenError
from headrace.routing.upstream.wire import UsageBody


class ChoiceEnd(msgspec.Struct):
    """How one choice ended; in a stream, None until it has."""

    index: int = 0
    finish_reason: str | None = None


class WholeBody(msgspec.Struct):
    """An answer, or an event of one."""

    choices: list[ChoiceEnd]
    usage: UsageBody | None = None


_decode = msgspec.json.Decoder(WholeBody).decode


def read_whole(body: bytes) -> tuple[str | None, Usage | None]:
    """How its last choice ended, and its tokens."""
    try:
        read = _decode(body)
    except (ValueError, RecursionError):
        raise UpstreamBrokenError("The upstream's answer makes no sense.") from None
    if not read.choices:
        raise UpstreamBrokenError("The upstream's answer has no choices.")
    return read.choices[-1].finish_reason, usage_of(read.usage)


def usage_of(told: UsageBody | None) -> Usage | None:
    if told is None:
        return None
    return Usage(told.prompt_tokens, told.completion_tokens, told.cached_tokens)
