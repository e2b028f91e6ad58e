"""What a model in another process sends; conversations with real workers are in tests/registry."""

import asyncio
from typing import Any

import pytest

from headrace.engine.delivery import Delivery
from headrace.generation import Chunk, EngineStats, GenerationRequest, SamplingParams, Usage
from headrace.worker import frames
from headrace.worker.remote import RemoteModel
from scripted_worker import info_of


class Wire:
    """A channel that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[frames.ToWorker] = []

    def send(self, data: bytes) -> None:
        self.sent.append(frames.TO_WORKER.decode(data))

    def requests(self) -> list[GenerationRequest]:
        return [each.request for each in self.sent if isinstance(each, frames.Generate)]


def attached() -> tuple[RemoteModel, Wire]:
    model, wire = RemoteModel(10), Wire()
    attach(model, wire)
    return model, wire


def attach(model: RemoteModel, wire: Wire) -> None:
    channel: Any = wire
    model.attach(channel, info_of("m@1"))


def bring(model: RemoteModel, chunk: Chunk, wire: Wire) -> None:
    request_id = wire.requests()[-1].request_id
    model.receive_step(frames.Step([Delivery(request_id, chunk)], EngineStats()))


@pytest.mark.parametrize("seed", [None, 7])
async def test_what_is_drawn_has_a_seed_so_that_another_worker_draws_the_same(
    seed: int | None,
) -> None:
    model, wire = attached()
    request = GenerationRequest(request_id="r", prompt="x", sampling=SamplingParams(seed=seed))
    chunks = model.generate(request)
    first = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0)
    bring(model, Chunk(0, "a", [1]), wire)
    assert (await first).text == "a"
    model.lose_worker("it fell over")
    attach(model, wire)
    seeds = [each.sampling.seed for each in wire.requests()]
    assert len(seeds) == 2
    assert len(set(seeds)) == 1
    assert seeds[0] is not None
    assert seed in (None, seeds[0])
    await chunks.aclose()


async def test_a_whole_answer_is_no_longer_owed_though_nobody_has_read_it() -> None:
    model, wire = attached()
    request = GenerationRequest(request_id="r", prompt="x")
    chunks = model.generate(request)
    first = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0)
    bring(model, Chunk(0, "a", [1], None, "stop", None, Usage(1, 1)), wire)
    assert model.num_in_flight == 0
    model.lose_worker("it fell over")
    attach(model, wire)
    assert len(wire.requests()) == 1
    assert (await first).finish_reason == "stop"
    with pytest.raises(StopAsyncIteration):
        await anext(chunks)
    assert [type(each) for each in wire.sent] == [frames.Generate]
