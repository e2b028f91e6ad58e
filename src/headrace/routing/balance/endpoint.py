"""One place that can answer requests, as a router sees it. Knows no transport and no clock."""

from dataclasses import dataclass, field

from headrace.endpoints import EndpointKind


@dataclass(slots=True, eq=False)
class Endpoint:
    """A local worker or an upstream, with what is in flight to it.

    `name` is unique in its model and stays the same over restarts. `weight` is its share against
    the others', `tokens_in_flight` what its running requests hold: prompts and answers so far.
    `latency` is an average of seconds to the first byte, None before the first answer.
    """

    name: str
    weight: float = 1.0
    kind: EndpointKind = "worker"
    num_in_flight: int = 0
    tokens_in_flight: int = 0
    latency: float | None = None
    model_id: str = ""
    """The version that it answers for, for who reads the log."""
    latency_at: float = field(default=0.0, repr=False)
    """Monotonic time of the last change of `latency`."""
