import asyncio
import ssl
from contextlib import aclosing
from typing import Any

import pytest

from headrace import errors
from headrace.errors import DeadlineError, HeadraceError, from_code
from headrace.routing.outcome import (
    DROPPED,
    LEFT,
    SUCCESS,
    Verdict,
    judge_error,
    judge_status,
)
from headrace.routing.upstream.errors import (
    UpstreamBrokenError,
    UpstreamBusyError,
    UpstreamFaultError,
    UpstreamRefusedError,
    UpstreamUnreachableError,
)

RETRYABLE = {408, 429, 502, 503, 504}


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((status, "success") for status in (200, 201, 204, 304)),
        *((status, "client") for status in (400, 401, 404, 408, 409, 413, 422, 499)),
        *((status, "neutral") for status in (429, 503)),
        *((status, "failure") for status in (500, 501, 502, 504, 507, 599)),
    ],
)
def test_a_status_has_one_outcome(status: int, outcome: str) -> None:
    assert judge_status(status).outcome == outcome


def test_only_six_statuses_are_tried_again_and_one_of_them_elsewhere() -> None:
    retries = {status: judge_status(status).retry for status in range(200, 600)}
    assert {status for status, retry in retries.items() if retry == "anywhere"} == RETRYABLE
    assert {status for status, retry in retries.items() if retry == "elsewhere"} == {500}
    assert set(retries.values()) == {"anywhere", "elsewhere", "never"}


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(),
        ConnectionResetError(),
        BrokenPipeError(),
        TimeoutError(),
        ssl.SSLCertVerificationError(),
        asyncio.IncompleteReadError(b"half", 10),
    ],
)
def test_a_transport_that_fails_is_a_failure(error: Exception) -> None:
    assert judge_error(error) == Verdict("failure", "anywhere")


@pytest.mark.parametrize("error", [ValueError("ours"), RecursionError(), AssertionError()])
def test_a_fault_of_ours_is_not_the_endpoints_and_would_happen_again(error: Exception) -> None:
    assert judge_error(error) == Verdict("neutral", "never")


def test_a_deadline_is_a_failure_only_of_an_endpoint_that_hangs() -> None:
    assert judge_error(DeadlineError(""), is_hanging=False) == Verdict("neutral", "never")
    assert judge_error(DeadlineError(""), is_hanging=True) == Verdict("failure", "never")
    assert judge_error(errors.QueueFullError(""), is_hanging=True).outcome == "neutral"


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("invalid_value", Verdict("client")),
        ("context_length_exceeded", Verdict("client")),
        ("model_not_found", Verdict("client")),
        ("conflict", Verdict("client")),
        ("body_too_large", Verdict("client")),
        ("body_timeout", Verdict("client", "anywhere")),
        ("unavailable", Verdict("neutral", "anywhere")),
        ("model_not_ready", Verdict("neutral", "anywhere")),
        ("queue_full", Verdict("neutral", "elsewhere")),
        ("draining", Verdict("neutral", "elsewhere")),
        ("deadline_exceeded", Verdict("neutral")),
        ("worker_died", Verdict("neutral")),
        ("internal_error", Verdict("failure", "elsewhere")),
    ],
)
def test_each_error_of_ours_is_judged(code: str, verdict: Verdict) -> None:
    assert judge_error(from_code(code, "")) == verdict


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (UpstreamUnreachableError(""), DROPPED),
        (UpstreamBrokenError(""), DROPPED),
        (UpstreamFaultError(""), Verdict("failure", "elsewhere")),
        (UpstreamBusyError("", retry_after=2.0), Verdict("neutral", "anywhere", 2.0)),
        (UpstreamRefusedError(""), Verdict("failure", "elsewhere")),
    ],
)
def test_an_error_of_an_upstream_is_judged_by_what_it_did_not_by_what_a_client_is_told(
    error: HeadraceError, verdict: Verdict
) -> None:
    assert judge_error(error) == verdict


def test_what_an_endpoint_asks_for_is_kept() -> None:
    assert judge_status(429, retry_after=2.0).retry_after == 2.0
    assert judge_error(errors.NotReadyError("", retry_after=0.5)).retry_after == 0.5


async def test_a_client_that_leaves_is_no_outcome() -> None:
    met: list[BaseException] = []

    async def answer() -> Any:
        try:
            yield 1
            await asyncio.sleep(60)
        except BaseException as error:
            met.append(error)
            raise

    async with aclosing(answer()) as chunks:
        await anext(chunks)
    waiting = asyncio.ensure_future(_all(answer()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [type(error) for error in met] == [GeneratorExit, asyncio.CancelledError]
    assert [judge_error(error) for error in met] == [LEFT, LEFT]


async def _all(chunks: Any) -> list[int]:
    return [chunk async for chunk in chunks]


async def test_a_body_that_breaks_off_is_a_failure_though_its_head_was_200() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        with pytest.raises(asyncio.IncompleteReadError) as broken:
            await reader.readexactly(100)
        writer.close()
    assert head.startswith(b"HTTP/1.1 200")
    assert judge_status(200) == SUCCESS
    assert judge_error(broken.value) == DROPPED
