"""What a rollout says of one request before it is answered."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """`model` is what to ask: the candidate by its id, or the stable version by the model's name.

    Whoever answers tells the rollout how it went, with this. `shadow` is a version to be asked the
    same afterwards; None for most. One that is not counted came while its stage waited for others.
    """

    rollout_id: str
    model: str
    is_candidate: bool
    stage: int
    is_counted: bool = True
    shadow: str | None = None
