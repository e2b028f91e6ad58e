"""How an HTTP request that a version took ended, as rollouts and experiments are told of it."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.api.exchange import TIMEOUT_HEADER, Exchange
from headrace.errors import DeadlineError, DrainingError, HeadraceError
from headrace.routing.observation import Observation

SERVER_FAULT = 500


@contextmanager
def observing(
    exchange: Exchange, user: str | None, tell: Callable[[Observation | None], None]
) -> Iterator[None]:
    """Tell once of the request that is answered inside: None if its end says nothing of who did."""
    try:
        yield
    except BaseException as error:
        tell(_seen_ending(exchange, user, error))
        raise
    tell(_seen(exchange, user))


def is_fault(error: BaseException) -> bool:
    """Whether it speaks against the version; a client's mistake and our own stop do not."""
    if isinstance(error, HeadraceError):
        return error.status >= SERVER_FAULT and not isinstance(error, DrainingError)
    return True


def _seen_ending(exchange: Exchange, user: str | None, error: BaseException) -> Observation | None:
    match error:
        case asyncio.CancelledError():  # the client has left
            return _seen(exchange, user, is_cut_off=True)
        case DeadlineError():
            # How long a client of its own accord waits is no measure of a version.
            is_ours = exchange.header(TIMEOUT_HEADER) is None
            return _seen(exchange, user, failed=is_ours, is_cut_off=True)
        case _:
            return _seen(exchange, user, failed=True) if is_fault(error) else None


def _seen(
    exchange: Exchange, user: str | None, *, failed: bool = False, is_cut_off: bool = False
) -> Observation:
    return Observation(
        user=user or exchange.request_id,
        failed=failed,
        ttft=exchange.ttft,
        latency=time.monotonic() - exchange.arrived,
        num_tokens=exchange.completion_tokens,
        is_cut_off=is_cut_off,
    )
