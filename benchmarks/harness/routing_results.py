"""What a benchmark of routing found, and what it says against no gateway. Pure arithmetic."""

from collections.abc import Callable
from statistics import median

import msgspec

from harness.results import Machine
from harness.summary import Percentiles

DIRECT = "direct"  # the gateway to which others are compared


class Shape(msgspec.Struct, frozen=True):
    """One kind of load: how many users ask at once, and whether for streams."""

    connections: int
    is_stream: bool


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What the compiled load says of one run; `cpu` is its own share of a core.

    Requests and events are those of the measured seconds, errors all that there were.
    """

    seconds: float
    num_requests: int
    num_events: int
    num_errors: int
    first_error: str | None
    num_connections: int
    latency_ms: Percentiles
    first_event_ms: Percentiles
    gap_ms: Percentiles
    cpu: float

    @property
    def requests_per_second(self) -> float:
        return self.num_requests / self.seconds

    @property
    def events_per_second(self) -> float:
        return self.num_events / self.seconds


class Round(msgspec.Struct, frozen=True):
    """One run, and the shares of a core that the gateway and the stub took meanwhile."""

    answered: Answered
    gateway_cpu: float
    stub_cpu: float


class Cell(msgspec.Struct, frozen=True):
    """One gateway under one load."""

    gateway: str
    shape: Shape
    rounds: list[Round]

    @property
    def rates(self) -> list[float]:
        """Of each round, requests a second, or events where those are what came."""
        return [_rate(self.shape, each.answered) for each in self.rounds]

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def latency(self) -> Percentiles:
        """To the whole answer, or to a stream's first event."""
        if self.shape.is_stream:
            return self.middle(lambda answered: answered.first_event_ms)
        return self.middle(lambda answered: answered.latency_ms)

    @property
    def cpu_us(self) -> float:
        """Microseconds of the gateway a request, or an event."""
        each = zip(self.rounds, self.rates, strict=True)
        return median(1e6 * round_.gateway_cpu / rate if rate else 0.0 for round_, rate in each)

    @property
    def cpus(self) -> tuple[float, float, float]:
        """Shares of a core: gateway, stub, load."""
        return (
            median(each.gateway_cpu for each in self.rounds),
            median(each.stub_cpu for each in self.rounds),
            median(each.answered.cpu for each in self.rounds),
        )

    @property
    def errors(self) -> list[str]:
        answers = [each.answered for each in self.rounds]
        return [
            f"{a.num_errors} errors, the first: {a.first_error}" for a in answers if a.first_error
        ]

    def middle(self, of: Callable[[Answered], Percentiles]) -> Percentiles:
        """The median round's percentiles, each for itself."""
        found = [of(each.answered) for each in self.rounds]
        p50 = [each.p50 for each in found if each.p50 is not None]
        p99 = [each.p99 for each in found if each.p99 is not None]
        return Percentiles(median(p50) if p50 else None, median(p99) if p99 else None)


class RoutingResults(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one run found. `cores` tells where gateway, stub and load ran."""

    date: str
    command: str
    machine: Machine
    versions: dict[str, str]
    cores: tuple[int, int, int]
    seconds: float
    num_events: int
    gap_us: int
    cells: list[Cell]
    skipped: dict[str, str]

    def without(self, cell: Cell) -> Cell | None:
        """The same load without a gateway."""
        same = (it for it in self.cells if (it.gateway, it.shape) == (DIRECT, cell.shape))
        return next(same, None)


def added(cell: Cell, direct: Cell) -> Percentiles:
    """Milliseconds at the median and the 99th percentile that the gateway adds to those."""
    ours, theirs = cell.latency, direct.latency
    return Percentiles(_difference(ours.p50, theirs.p50), _difference(ours.p99, theirs.p99))


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _rate(shape: Shape, answered: Answered) -> float:
    return answered.events_per_second if shape.is_stream else answered.requests_per_second
