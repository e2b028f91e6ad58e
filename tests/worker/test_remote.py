"""What a model in another process sends; conversations with real workers are in tests/registry."""

import asyncio
import itertools
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.engine.delivery import Delivery
from headrace.errors import (
    DeadlineError,
    DrainingError,
    HeadraceError,
    InvalidRequestError,
    NotReadyError,
    QueueFullError,
    WorkerDiedError,
)
from headrace.generation import Chunk, EngineStats, GenerationRequest, SamplingParams, Usage
from headrace.worker import frames
from headrace.worker.remote import RemoteGeneration, RemoteModel
from scripted_worker import info_of

Found = TypeVar("Found")

LAST = Chunk(0, "a", [1], None, "stop", None, Usage(1, 1))


class Wire:
    """A channel that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[frames.ToWorker] = []

    def send(self, data: bytes) -> None:
        self.sent.append(frames.TO_WORKER.decode(data))

    def requests(self) -> list[GenerationRequest]:
        return [each.request for each in self.sent if isinstance(each, frames.Generate)]

    def aborted(self) -> list[list[str]]:
        return [each.request_ids for each in self.sent if isinstance(each, frames.Abort)]


def attached(max_in_flight: int = 10) -> tuple[RemoteModel, Wire]:
    model, wire = RemoteModel(max_in_flight), Wire()
    attach(model, wire)
    return model, wire


def attach(model: RemoteModel, wire: Wire) -> None:
    channel: Any = wire
    model.attach(channel, info_of("m@1"))


def asked(request_id: str = "r", deadline: float | None = None, n: int = 1) -> GenerationRequest:
    sampling = SamplingParams(n=n)
    return GenerationRequest(
        request_id=request_id, prompt="x", sampling=sampling, deadline=deadline
    )


async def begun(model: RemoteModel, **wanted: Any) -> tuple[RemoteGeneration, asyncio.Task[Chunk]]:
    """A generation and its first chunk to come; the request has been sent."""
    chunks = model.generate(asked(**wanted))
    first = asyncio.create_task(anext(chunks))
    await asyncio.sleep(0)
    return chunks, first


def bring(model: RemoteModel, wire: Wire, *chunks: Chunk) -> None:
    request_id = wire.requests()[-1].request_id
    deliveries = [Delivery(request_id, chunk) for chunk in chunks]
    model.receive_step(frames.Step(deliveries, EngineStats()))


async def test_what_is_sent_is_what_was_asked_under_an_id_of_its_own() -> None:
    model, wire = attached()
    (_, first), (other, second) = await begun(model), await begun(model)
    ids = {each.request_id for each in wire.requests()}
    assert len(ids) == 2
    assert all(each.sampling == SamplingParams() for each in wire.requests())
    bring(model, wire, LAST)
    assert (await second).text == "a"
    assert not first.done()
    with pytest.raises(StopAsyncIteration):
        await anext(other)
    model.close(DrainingError("over"))
    assert isinstance(await _error(first), DrainingError)


async def test_without_a_worker_requests_and_calls_are_refused_at_once() -> None:
    model, wire = RemoteModel(10), Wire()
    with pytest.raises(NotReadyError):
        _ = model.info
    for _ in range(2):
        with pytest.raises(NotReadyError) as refusal:
            await anext(model.generate(asked()))
        assert refusal.value.retry_after == 1.0
        with pytest.raises(NotReadyError):
            await model.tokenize("x")
        attach(model, wire)
        model.lose_worker("it fell over")
    assert model.info.model_id == "m@1"
    assert wire.sent == []


async def test_what_a_lost_worker_had_fails_and_the_next_worker_gets_none_of_it() -> None:
    model, wire = attached()
    chunks, first = await begun(model)
    call = asyncio.create_task(model.detokenize([1]))
    bring(model, wire, Chunk(0, "a", [1]))
    await asyncio.sleep(0)
    model.lose_worker("it fell over")
    assert model.num_in_flight == 0
    attach(model, wire)
    assert (await first).text == "a"
    with pytest.raises(WorkerDiedError, match=r"^it fell over$") as of_chunks:
        await anext(chunks)
    with pytest.raises(WorkerDiedError, match=r"^it fell over$") as of_call:
        await call
    assert of_chunks.value is not of_call.value
    await chunks.aclose()
    await asyncio.sleep(0)
    assert [type(each) for each in wire.sent] == [frames.Generate, frames.Detokenize]


@pytest.mark.parametrize("n", [1, 2])
async def test_a_whole_answer_is_no_longer_in_flight_though_nobody_has_read_it(n: int) -> None:
    model, wire = attached()
    chunks, first = await begun(model, n=n)
    for index in range(n):
        assert model.num_in_flight == 1
        bring(model, wire, Chunk(index, "a", [1], None, "stop", None, Usage(1, 1)))
    assert model.num_in_flight == 0
    model.lose_worker("it fell over")
    found = [await first, *[chunk async for chunk in chunks]]
    assert [chunk.finish_reason for chunk in found] == ["stop"] * n
    await asyncio.sleep(0)
    assert wire.aborted() == []


async def test_an_error_ends_a_request_without_an_abort() -> None:
    model, wire = attached()
    _, first = await begun(model)
    delivery = Delivery(wire.requests()[0].request_id, error=InvalidRequestError("no"))
    model.receive_step(frames.Step([delivery], EngineStats()))
    assert model.num_in_flight == 0
    with pytest.raises(InvalidRequestError, match="no"):
        await first
    await asyncio.sleep(0)
    assert wire.aborted() == []


async def test_a_closed_model_gives_everyone_now_and_later_its_error() -> None:
    model, _ = attached()
    _, first = await begun(model)
    call = asyncio.create_task(model.tokenize("x"))
    await asyncio.sleep(0)
    model.close(DrainingError("over", retry_after=7.0))
    errors = [await _error(first), await _error(call)]
    errors.append(await _error(anext(model.generate(asked()))))
    errors.append(await _error(model.tokenize("x")))
    assert {(type(each), each.message, each.retry_after) for each in errors} == {
        (DrainingError, "over", 7.0)
    }
    assert len({id(each) for each in errors}) == 4


async def test_those_who_leave_in_one_turn_share_an_abort() -> None:
    model, wire = attached()
    generations = [await begun(model) for _ in range(3)]
    for chunks, _ in generations:
        await chunks.aclose()
    assert model.num_in_flight == 0
    await asyncio.sleep(0)
    assert wire.aborted() == [[each.request_id for each in wire.requests()]]
    for _, first in generations:
        first.cancel()
    await asyncio.gather(*(first for _, first in generations), return_exceptions=True)


async def test_a_deadline_fires_while_the_worker_says_nothing() -> None:
    model, wire = attached()
    _, first = await begun(model, deadline=time.monotonic() + 0.01)
    assert isinstance(await _error(first), DeadlineError)
    await asyncio.sleep(0)
    assert wire.aborted() == [[wire.requests()[0].request_id]]
    assert model.num_in_flight == 0


async def test_a_request_that_is_late_already_is_not_sent() -> None:
    model, wire = attached()
    late = anext(model.generate(asked(deadline=time.monotonic())))
    assert isinstance(await _error(late), DeadlineError)
    assert wire.sent == []


async def test_more_than_may_be_in_flight_is_refused_and_leaves_nothing_behind() -> None:
    model, wire = attached(max_in_flight=1)
    chunks, first = await begun(model)
    assert isinstance(await _error(anext(model.generate(asked()))), QueueFullError)
    assert isinstance(await _error(model.tokenize("x")), QueueFullError)
    bring(model, wire, LAST)
    assert await first == LAST
    await chunks.aclose()
    call = asyncio.create_task(model.tokenize("x"))
    await asyncio.sleep(0)
    sent = wire.sent[-1]
    assert isinstance(sent, frames.Tokenize)
    model.receive_reply(frames.Reply(sent.call_id, [1]))
    assert await call == [1]
    assert model.num_in_flight == 0


async def test_a_value_that_no_frame_can_hold_is_the_clients_fault() -> None:
    model, _ = attached()
    assert isinstance(await _error(model.detokenize([1 << 70])), InvalidRequestError)
    assert model.num_in_flight == 0


async def _error(answer: Any) -> HeadraceError:
    with pytest.raises(HeadraceError) as raised:
        await answer
    return raised.value


class Workers(RuleBasedStateMachine):
    """Workers come and go: each request has the answer or the error of the worker that had it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model = RemoteModel(1000)
        self.wire: Wire | None = None
        self.running: dict[str, tuple[RemoteGeneration, asyncio.Task[Chunk]]] = {}
        self.numbers = itertools.count()

    def teardown(self) -> None:
        for wire_id in list(self.running):
            self._cancel(wire_id)
        self.loop.close()

    @precondition(lambda self: self.wire is None)
    @rule()
    def attach(self) -> None:
        self.wire = Wire()
        attach(self.model, self.wire)

    @rule()
    def ask(self) -> None:
        chunks, first = self._do(begun(self.model, request_id=str(next(self.numbers))))
        if self.wire is None:
            with pytest.raises(NotReadyError):
                self.loop.run_until_complete(first)
        else:
            self.running[self.wire.requests()[-1].request_id] = chunks, first

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_last=st.booleans())
    def answer(self, data: st.DataObject, *, is_last: bool) -> None:
        wire_id = data.draw(st.sampled_from(sorted(self.running)))
        chunk = LAST if is_last else Chunk(0, "a", [1])
        self.model.receive_step(frames.Step([Delivery(wire_id, chunk)], EngineStats()))
        chunks, upcoming = self.running.pop(wire_id)
        assert self.loop.run_until_complete(upcoming) == chunk
        upcoming = self.loop.create_task(anext(chunks))
        if is_last:
            with pytest.raises(StopAsyncIteration):
                self.loop.run_until_complete(upcoming)
        else:
            self._do(asyncio.sleep(0))
            self.running[wire_id] = chunks, upcoming

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        wire_id = data.draw(st.sampled_from(sorted(self.running)))
        self._cancel(wire_id)
        assert self.wire is not None
        assert self.wire.aborted()[-1] == [wire_id]

    @precondition(lambda self: self.wire is not None)
    @rule()
    def lose(self) -> None:
        self.model.lose_worker("it fell over")
        self.wire = None
        for _, upcoming in self.running.values():
            with pytest.raises(WorkerDiedError):
                self.loop.run_until_complete(upcoming)
        self.running.clear()

    @invariant()
    def in_flight_is_what_the_worker_has(self) -> None:
        assert self.model.num_in_flight == len(self.running)

    def _cancel(self, wire_id: str) -> None:
        _, upcoming = self.running.pop(wire_id)
        upcoming.cancel()
        with pytest.raises(asyncio.CancelledError):
            self.loop.run_until_complete(upcoming)
        self._do(asyncio.sleep(0))

    def _do(self, work: Coroutine[Any, Any, Found]) -> Found:
        return self.loop.run_until_complete(work)


TestWorkers = Workers.TestCase
