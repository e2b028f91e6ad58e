"""How one request ended, as rollouts and experiments are told of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One request that a version took; times are in seconds from its arrival.

    `user` is the request's own id where nobody is named. `failed` is the version's fault; a
    request that its client got wrong is no observation. Whether one `is_cut_off`, by its client or
    by a deadline: then its answer would have taken `latency` at least.
    """

    user: str
    failed: bool
    ttft: float | None
    """None: no token came, or the answer is no stream of tokens."""
    latency: float
    num_tokens: int | None
    """Of the answer; None where they are not counted."""
    is_cut_off: bool = False

    @property
    def has_left(self) -> bool:
        """Whether its client did not wait for it: nobody knows whether it would have failed."""
        return self.is_cut_off and not self.failed
