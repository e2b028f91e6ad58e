"""What one attempt says of the endpoint that had it, and whether another may follow.

Judges a finished attempt by its error or its HTTP status. Knows no breaker and no endpoint. Errors
of writing to the client are not for here: they say nothing of the endpoint.
"""

from dataclasses import dataclass
from typing import Literal

from headrace.errors import (
    DeadlineError,
    DrainingError,
    HeadraceError,
    QueueFullError,
    WorkerDiedError,
)
from headrace.routing.upstream.errors import (
    UpstreamBrokenError,
    UpstreamRefusedError,
    UpstreamUnreachableError,
)

Outcome = Literal["success", "client", "neutral", "failure"]
"""`client`: the request was at fault. `neutral`: back-pressure, or nobody's fault."""

Retry = Literal["never", "elsewhere", "anywhere"]
"""Where the next try may go; `elsewhere`: not to the endpoint that had this one."""

RETRYABLE = frozenset({408, 429, 502, 503, 504})
INTERNAL_ERROR = 500
BACK_PRESSURE = frozenset({429, 503})
CLIENT_ERRORS, SERVER_ERRORS = 400, 500  # each and above


@dataclass(frozen=True, slots=True)
class Verdict:
    """`outcome` is None where the attempt proves nothing because the client left.

    `retry_after`: seconds that this endpoint asked to be left alone.
    """

    outcome: Outcome | None
    retry: Retry = "never"
    retry_after: float | None = None


SUCCESS = Verdict("success")
LEFT = Verdict(None)
DROPPED = Verdict("failure", "anywhere")
HUNG = Verdict("failure")  # its deadline has passed, so nothing can follow
OUR_FAULT = Verdict("neutral")  # it would happen again wherever the request went

TRANSPORT_ERRORS = (OSError, EOFError)  # among the former are timeouts and all of TLS

VERDICTS: tuple[tuple[type[HeadraceError], Verdict], ...] = (
    (DeadlineError, Verdict("neutral")),  # the client's choice, but see `HUNG`
    # Full means an immediate answer: to wait here for room there would be a queue without a limit.
    (QueueFullError, Verdict("neutral", "elsewhere")),
    (DrainingError, Verdict("neutral", "elsewhere")),
    # A server elsewhere gave the request up as what kills its workers: it must not kill others.
    # Of a worker of ours it never comes to this judgement.
    (WorkerDiedError, Verdict("neutral")),
    # What a client is told of an upstream is not what the upstream did.
    (UpstreamUnreachableError, DROPPED),
    (UpstreamBrokenError, DROPPED),
    # It refuses us, and so everybody for whom we ask.
    (UpstreamRefusedError, Verdict("failure", "elsewhere")),
)
"""Errors that their status does not judge."""


def judge_error(error: BaseException, *, is_hanging: bool = False) -> Verdict:
    """Judge an attempt by the error that ended it, before or in the middle of its answer.

    `is_hanging`: the endpoint had said nothing for longer than one that works ever takes.
    """
    if not isinstance(error, Exception):  # cancelled or closed: the client left
        return LEFT
    if not isinstance(error, HeadraceError):
        return DROPPED if isinstance(error, TRANSPORT_ERRORS) else OUR_FAULT
    if is_hanging and isinstance(error, DeadlineError):
        return HUNG
    for kind, verdict in VERDICTS:
        if isinstance(error, kind):
            return verdict
    return judge_status(error.status, retry_after=error.retry_after)


def sentence(error: BaseException) -> str:
    """What the end of an attempt says of its endpoint, for people."""
    return error.message if isinstance(error, HeadraceError) else type(error).__name__


def judge_status(status: int, *, retry_after: float | None = None) -> Verdict:
    """Judge an HTTP answer whose body has come to its end; one that breaks off is `DROPPED`."""
    retry: Retry = "anywhere" if status in RETRYABLE else "never"
    if status == INTERNAL_ERROR:  # the same request would most likely end the same there
        retry = "elsewhere"
    return Verdict(_outcome_of_status(status), retry, retry_after)


def _outcome_of_status(status: int) -> Outcome:
    if status in BACK_PRESSURE:
        return "neutral"
    if status >= SERVER_ERRORS:
        return "failure"
    return "client" if status >= CLIENT_ERRORS else "success"
