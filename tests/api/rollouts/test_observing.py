import asyncio
from contextlib import suppress

import pytest

from headrace.api.exchange import Exchange
from headrace.api.rollouts.observing import observing
from headrace.errors import (
    DeadlineError,
    DrainingError,
    InvalidRequestError,
    QueueFullError,
    WorkerDiedError,
)
from headrace.routing.observation import Observation

OWN_DEADLINE = {b"x-request-timeout": b"1"}


def told_of(
    error: BaseException | None, headers: dict[bytes, bytes] | None = None
) -> Observation | None:
    """What is told, once, of a request that ends so."""
    exchange = Exchange(request_id="r", request_headers=headers or {})
    told: list[Observation | None] = []
    with (
        suppress(Exception, asyncio.CancelledError),
        observing(exchange, "ada", told.append),
    ):
        if error is not None:
            raise error
    [seen] = told
    return seen


@pytest.mark.parametrize("error", [WorkerDiedError("gone"), QueueFullError("full"), ValueError()])
def test_a_fault_is_a_failure(error: Exception) -> None:
    seen = told_of(error)
    assert seen is not None
    assert (seen.failed, seen.is_cut_off) == (True, False)


@pytest.mark.parametrize("error", [InvalidRequestError("no"), DrainingError("bye")])
def test_a_clients_mistake_and_our_own_stop_say_nothing(error: Exception) -> None:
    assert told_of(error) is None


def test_an_answer_is_told_of() -> None:
    seen = told_of(None)
    assert seen is not None
    assert (seen.user, seen.failed, seen.is_cut_off, seen.has_left) == ("ada", False, False, False)


def test_a_client_that_leaves_has_waited_so_long_at_least() -> None:
    seen = told_of(asyncio.CancelledError())
    assert seen is not None
    assert (seen.failed, seen.is_cut_off, seen.has_left) == (False, True, True)


def test_the_servers_own_deadline_is_the_versions_fault_and_a_clients_is_not() -> None:
    ours, theirs = told_of(DeadlineError("late")), told_of(DeadlineError("late"), OWN_DEADLINE)
    assert ours is not None
    assert theirs is not None
    assert (ours.failed, ours.is_cut_off, ours.has_left) == (True, True, False)
    assert (theirs.failed, theirs.is_cut_off, theirs.has_left) == (False, True, True)
