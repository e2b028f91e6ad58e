"""SmolLM2 in real worker processes, over the real channel."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from headrace.errors import ContextLengthError, DeadlineError, ModelFileError
from headrace.generation import Chat, Message, SamplingParams
from headrace.registry.registry import Registry
from headrace.registry.spec import ModelSpec
from headrace.registry.workers.patience import Patience
from real_server import cache_dir
from scripted_serving import Served, generate, is_alive, new_router

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
QUICK = Patience(tick=0.2, first_delay=0.05)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    registry = Registry(cache_dir(), new_router=new_router, patience=QUICK)
    served = Served(registry)
    await registry.start([ModelSpec(name="m0", source="smollm2")])
    await registry.loaded()
    yield served
    await registry.close()
    assert not [pid for status in served.seen for pid in status.pids if is_alive(pid)]


@pytest.mark.slow
async def test_it_answers_aborts_and_survives_its_worker(served: Served) -> None:
    prompt = "The capital of France is"
    alone = await served.answer(prompt, sampling=GREEDY)
    assert "Paris" in alone

    info = served.status.info
    assert info is not None
    assert info.model_id == "m0@1"
    assert {status.phase for status in served.seen} >= {"starting", "warming", ""}

    async with served.registry.acquire("m0") as model:
        ids = await model.tokenize(prompt)
        assert await model.detokenize(ids) == prompt
        assert await served.answer(ids, sampling=GREEDY) == alone
        chat = Chat((Message("user", "Say hello."),))
        assert await served.answer(chat, sampling=GREEDY)
        with pytest.raises(ContextLengthError, match=str(info.max_model_len)):
            await served.answer([1] * (info.max_model_len + 1))
        endless = SamplingParams(ignore_eos=True)
        deadline = asyncio.get_running_loop().time() + 0.05
        with pytest.raises(DeadlineError):
            await served.answer(prompt, sampling=endless, deadline=deadline)

    await _storm(served)
    stats = await served.until_stats(lambda stats: stats.num_running + stats.num_waiting == 0)
    assert stats.num_free_blocks == stats.num_blocks

    await _killed_under_load(served, prompt)


async def _storm(served: Served) -> None:
    async def leave(number: int) -> None:
        sampling = SamplingParams(max_tokens=64, ignore_eos=True)
        async with (
            served.registry.acquire("m0") as model,
            aclosing(generate(model, f"Story {number}:", sampling=sampling)) as chunks,
        ):
            for _ in range(random.randrange(3)):
                await anext(chunks)

    await asyncio.gather(*map(leave, range(60)))


async def _killed_under_load(served: Served, prompt: str) -> None:
    pid = served.pid
    os.kill(pid, signal.SIGSTOP)
    waiting = [asyncio.create_task(served.answer(prompt, sampling=GREEDY)) for _ in range(4)]
    await asyncio.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    answers = await asyncio.gather(*waiting)
    assert all("Paris" in answer for answer in answers)
    assert served.status.restarts == 1


@pytest.mark.parametrize("content", [None, b"GGUF\x03\0"])
async def test_a_file_that_cannot_be_read_fails_with_one_line(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    registry = Registry(tmp_path, new_router=new_router, patience=QUICK)
    await registry.start([ModelSpec(name="m", source=str(path))])
    try:
        with pytest.raises(ModelFileError, match=str(path)) as failure:
            await registry.loaded()
        assert "\n" not in failure.value.message
        status = registry.statuses()[0]
        assert (status.state, status.reason) == ("failed", failure.value.message)
        assert status.restarts == 0
    finally:
        await registry.close()
