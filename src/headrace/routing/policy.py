"""The numbers of routing with their units: one frozen value that every part below is given."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPolicy:
    """Defaults near those of smg (breaker, tries) and Finagle (budget). Times are in seconds.

    Every number is above 0 but where 0 is said to be off.

    The breaker's window is 30 s where smg has 120: failures are weighed against successes here,
    and two minutes of good answers would outvote a minute of bad ones.
    """

    jitter: float = 0.2
    """Share of a delay by which it is scattered to either side, so that no two run in step."""

    hang_time: float = 10.0
    """Seconds without a byte of a stream after which a deadline is the upstream's failure."""

    max_tries: int = 5
    """Tries of one request, the first included."""
    retry_delay: float = 0.05
    """Seconds before the second try."""
    retry_delay_growth: float = 1.5
    """Factor from one delay to the next."""
    max_retry_delay: float = 1.0
    """Seconds, before scattering."""
    max_retry_after: float = 2.0
    """Seconds of an endpoint's Retry-After that a request waits for; a longer one is passed on."""

    retry_share: float = 0.2
    """Retries for each request of the last `retry_window` seconds."""
    retry_floor: float = 10.0
    """Retries a second that are allowed beside the share, for servers with few requests."""
    retry_window: float = 10.0
    """Seconds for which a request counts, and for which the floor may be saved up."""

    failure_threshold: int = 10
    """Failures that open a breaker: in a row, or in the window if `failure_share` is reached."""
    failure_share: float = 0.5
    """Share of failures among all outcomes of the window but neutral ones."""
    failure_window: float = 30.0
    """Seconds."""
    open_time: float = 5.0
    """Seconds that a breaker stays open the first time."""
    open_time_growth: float = 2.0
    """Factor from one opening to the next, until `calm_time` has passed without one."""
    max_open_time: float = 60.0
    """Seconds, before scattering."""
    max_half_open: int = 3
    """Requests at a time that a half-open breaker lets through."""
    success_threshold: int = 3
    """Successes that close a half-open breaker; one failure opens it again."""

    probe_interval: float = 30.0
    """Seconds between probes of an endpoint whose last probe passed."""
    suspect_probe_interval: float = 5.0
    """Seconds between probes of one that is out, or whose last probe failed."""
    remove_after: int = 3
    """Failed probes in a row that take an endpoint out; one is enough before the first good one."""
    return_after: int = 2
    """Good probes in a row that bring it back; twice as many each time it has gone out again."""
    max_return_after: int = 16
    """Good probes that the worst flapper needs."""
    calm_time: float = 300.0
    """Seconds in service after which earlier openings and removals are forgotten."""

    slow_start_time: float = 30.0
    """Seconds in which the weight of an endpoint that came back grows to the whole; 0 is off."""
    slow_start_share: float = 0.1
    """Share of its weight that it starts with."""

    max_waiting_tokens: int = 16 << 20
    """Of the prompts, all together, of requests that wait for a worker's return."""

    min_retry_after: float = 1.0
    """Seconds that a client is told to stay away at least when no endpoint takes requests."""
