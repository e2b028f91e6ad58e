"""What a whole comparison found, as plain data that is written to and read from JSON."""

import msgspec

from harness.summary import Summary


class Plan(msgspec.Struct, frozen=True):
    """The load that every system gets, in this order, in every round."""

    concurrencies: list[int]
    prompt_tokens: int
    output_tokens: int
    rounds: int
    seconds: float
    starts: int


class Level(msgspec.Struct, frozen=True):
    """One system at one concurrency.

    CPU shares are of one core: the client's while it measured, and that of the systems that were
    meant to be idle. `health_p99` is the slowest
    round's 99th percentile of the liveness answer under this load, in milliseconds.
    """

    concurrency: int
    summary: Summary
    cpu_ms_per_token: float | None
    client_cpu: float
    idle_cpu: float
    health_p99: float | None = None
    missed_health: int = 0


class SystemResult(msgspec.Struct, frozen=True):
    """One system; seconds from its command to its first answer, once for each start."""

    name: str
    start_seconds: list[float]
    peak_memory: int | None
    levels: list[Level]


class Machine(msgspec.Struct, frozen=True):
    cpu: str
    cores: int
    features: list[str]
    memory: int


class Results(msgspec.Struct, frozen=True):
    """Everything that one run found; `model` is the name of its GGUF file."""

    date: str
    model: str
    command: str
    machine: Machine
    plan: Plan
    systems: list[SystemResult]
    skipped: dict[str, str]
    versions: dict[str, str]
