"""How a candidate's answers to mirrored requests compare. Nobody gets these answers."""

import msgspec

from headrace.routing.stats.moments import Moments


class Answer(msgspec.Struct, frozen=True):
    """A whole answer; `latency` in seconds, `num_tokens` None where they are not counted."""

    text: str
    num_tokens: int | None
    latency: float


class Shadow(msgspec.Struct):
    """Of this life of the server. Equality is looked at where both chose greedily."""

    num_mirrored: int = 0
    num_dropped: int = 0
    """As many were under way as may be."""
    num_failed: int = 0
    num_greedy: int = 0
    num_equal: int = 0
    first_difference: Moments = msgspec.field(default_factory=Moments)
    """Characters that were alike before it."""
    stable_latency: Moments = msgspec.field(default_factory=Moments)
    candidate_latency: Moments = msgspec.field(default_factory=Moments)
    stable_tokens: Moments = msgspec.field(default_factory=Moments)
    candidate_tokens: Moments = msgspec.field(default_factory=Moments)

    def compare(self, stable: Answer, candidate: Answer, *, is_greedy: bool) -> None:
        self.num_mirrored += 1
        self.stable_latency.add(stable.latency)
        self.candidate_latency.add(candidate.latency)
        if stable.num_tokens is not None and candidate.num_tokens is not None:
            self.stable_tokens.add(stable.num_tokens)
            self.candidate_tokens.add(candidate.num_tokens)
        if is_greedy:
            self._compare_texts(stable.text, candidate.text)

    def _compare_texts(self, stable: str, candidate: str) -> None:
        self.num_greedy += 1
        at = first_difference(stable, candidate)
        if at is None:
            self.num_equal += 1
        else:
            self.first_difference.add(at)


def first_difference(one: str, other: str) -> int | None:
    """The number of characters that both begin with; None for the same text."""
    if one == other:
        return None
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return min(len(one), len(other))
