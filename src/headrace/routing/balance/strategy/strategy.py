"""What a strategy is: an endpoint for a request, chosen from a roster. Knows none of them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.routing.balance.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What choosing may look at.

    `user` is None where nobody was named. `prompt` is text, or token ids where they are known;
    `num_tokens` an estimate of its length. Prompts under different `salt` share no cache.
    """

    user: str | None = None
    prompt: str | Sequence[int] = ""
    num_tokens: int = 0
    salt: str = ""


class Strategy(Protocol):
    """A way to choose."""

    def choose(
        self, key: RequestKey, now: float, excluding: Collection[Endpoint]
    ) -> Endpoint | None:
        """An endpoint on the roster and not among `excluding`; None exactly when there is none."""
        ...
