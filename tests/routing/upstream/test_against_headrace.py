"""The good path, against the real HTTP server of a Headrace whose model follows a script."""

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvicorn

from api.conftest import running
from api.scripted import WORDS, ScriptedModel, ScriptedRegistry, chunk_of, info
from engine.paged_executor import ByteTokenizer, PagedExecutor
from headrace.api.app import create_app
from headrace.api.connection import StreamingProtocol
from headrace.api.serving import Readiness
from headrace.api.trials import Trials
from headrace.endpoints import UpstreamConfig
from headrace.engine.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.engine.stream import fold_chunks
from headrace.errors import (
    ContextLengthError,
    DeadlineError,
    DrainingError,
    HeadraceError,
    InvalidRequestError,
    QueueFullError,
    WorkerDiedError,
)
from headrace.generation import (
    Answered,
    Chat,
    Chunk,
    GenerationRequest,
    Message,
    Prompt,
    SamplingParams,
)
from headrace.routing.attempts.resumable import Resumable
from headrace.routing.upstream.errors import UpstreamBusyError, UpstreamRefusedError
from headrace.routing.upstream.upstream import Upstream
from headrace.settings import (
    LimitsSection,
    ServerSection,
    Settings,
    StorageSection,
    TelemetrySection,
)
from routing.upstream.asking import answer, chunks, request, until_error

CHAT = Chat((Message("user", "Hi"),))
TEXT = "".join(WORDS)


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture
def registry(model: ScriptedModel) -> ScriptedRegistry:
    return ScriptedRegistry(models=[model])


@pytest.fixture
async def upstream(registry: ScriptedRegistry, tmp_path: Path) -> AsyncIterator[Upstream]:
    settings = Settings(
        server=ServerSection(port=0, state_dir=tmp_path),
        storage=StorageSection(),
        limits=LimitsSection(),
        telemetry=TelemetrySection(),
        models=(),
    )
    app = create_app(registry, Trials(registry), settings, readiness=Readiness())
    config = uvicorn.Config(app, port=0, http=StreamingProtocol, lifespan="off", log_config=None)
    async with running(config) as url, Upstream(UpstreamConfig(url=f"{url}/v1")) as opened:
        yield opened


@pytest.mark.parametrize("prompt", ["Hi", [1, 2], CHAT])
async def test_text_comes_as_it_is_generated(
    upstream: Upstream, model: ScriptedModel, prompt: Prompt
) -> None:
    got = await chunks(upstream, prompt)
    assert [chunk.text for chunk in got] == WORDS
    last = got[-1]
    assert last.finish_reason == "stop"
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.cached_tokens) == (11, 4)
    assert last.usage.completion_tokens == len(WORDS)
    assert model.requests[0].prompt == prompt


async def test_forwarded_chunks_are_the_same(upstream: Upstream) -> None:
    got: list[Chunk] = []

    def take(chunk: Chunk) -> bool:
        got.append(chunk)
        return len(got) % 2 == 0  # wants a pause now and then

    stream = upstream.generate(request())
    num_pauses = 0
    while not await stream.forward(take):
        num_pauses += 1
    assert num_pauses == 3
    assert [chunk.text for chunk in got] == WORDS


async def test_a_taker_that_fails_ends_the_stream(
    upstream: Upstream, registry: ScriptedRegistry
) -> None:
    def fail(_chunk: Chunk) -> bool:
        raise ZeroDivisionError

    stream = upstream.generate(request())
    with pytest.raises(ZeroDivisionError):
        await stream.forward(fail)
    assert await stream.forward(fail)
    await _all_left(registry)


SAMPLING = SamplingParams(
    max_tokens=6,
    min_tokens=2,
    temperature=0.5,
    top_p=0.25,
    top_k=3,
    min_p=0.125,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    repetition_penalty=1.5,
    logit_bias={5: 2.0},
    seed=-7,
    logprobs=2,
    n=3,
    stop=("a", "b"),
    stop_token_ids=(9,),
    ignore_eos=True,
    skip_special_tokens=False,
)


@pytest.mark.parametrize("prompt", ["Hi", CHAT])
async def test_every_sampling_parameter_arrives(
    upstream: Upstream, model: ScriptedModel, prompt: Prompt
) -> None:
    wanted = GenerationRequest(request_id="r", prompt=prompt, sampling=SAMPLING)
    got = fold_chunks([chunk async for chunk in upstream.generate(wanted)])
    assert model.requests[0].sampling == SAMPLING
    assert sorted(chunk.index for chunk in got) == [0, 1, 2]
    assert {chunk.text for chunk in got} == {TEXT}


async def test_a_deadline_arrives(upstream: Upstream, model: ScriptedModel) -> None:
    wanted = request(within=50.0)
    assert [chunk async for chunk in upstream.generate(wanted)]
    got, asked = model.requests[0].deadline, wanted.deadline
    assert got is not None
    assert asked is not None
    assert abs(got - asked) < 5  # one machine's clock


@pytest.mark.parametrize("prompt", ["Hi", CHAT])
async def test_log_probabilities_come_back(upstream: Upstream, prompt: Prompt) -> None:
    got = await answer(upstream, prompt, logprobs=2)
    assert got.logprobs is not None
    assert [each.token.decode() for each in got.logprobs] == WORDS
    assert all(each.logprob == -0.25 for each in got.logprobs)
    assert [top.token for top in got.logprobs[0].top] == [b"Water", b"\xc3"]
    assert math.isclose(got.logprobs[0].top[1].logprob, -9999.0)


async def test_an_echo_comes_first(upstream: Upstream) -> None:
    assert (await answer(upstream, "Hi", echo=True)).text == "Hi" + TEXT


async def test_tokens_and_back(upstream: Upstream) -> None:
    assert await upstream.tokenize("Hi") == [1, *b"Hi"]
    assert await upstream.tokenize("Hi", add_special_tokens=False) == list(b"Hi")
    assert await upstream.tokenize(CHAT) == [1, *b"Hi"]
    assert await upstream.detokenize(list(b"Hi")) == "Hi"


async def test_what_it_is(upstream: Upstream) -> None:
    await upstream.probe()
    learned = await upstream.learn()
    assert (learned.model_id, learned.max_model_len) == ("chat", 1024)
    assert learned.executor == "upstream-headrace"
    assert [card.id for card in await upstream.models()] == ["chat"]


# Leaving


async def _forever(_model: ScriptedModel, asked: GenerationRequest) -> AsyncIterator[Chunk]:
    while True:
        yield chunk_of("on ", asked, 0, is_last=False, count=0)
        await asyncio.sleep(0.001)


async def _never(_model: ScriptedModel, asked: GenerationRequest) -> AsyncIterator[Chunk]:
    await asyncio.get_running_loop().create_future()
    yield chunk_of("", asked, 0, is_last=True, count=0)


async def _all_left(registry: ScriptedRegistry) -> None:
    async with asyncio.timeout(30):
        if registry.leases:
            await registry.free.wait()


async def test_closing_the_stream_aborts_there(
    upstream: Upstream, model: ScriptedModel, registry: ScriptedRegistry
) -> None:
    model.script = _forever
    stream = upstream.generate(request())
    assert (await anext(stream)).text == "on "
    assert model.running
    await stream.aclose()
    await _all_left(registry)
    assert not model.running


async def test_cancelling_before_the_first_chunk_aborts_there(
    upstream: Upstream, model: ScriptedModel, registry: ScriptedRegistry
) -> None:
    model.script = _never
    task = asyncio.create_task(chunks(upstream))
    async with asyncio.timeout(30):
        while not model.running:  # noqa: ASYNC110  # a set has no event
            await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _all_left(registry)


async def test_a_deadline_ends_it_on_both_sides(
    upstream: Upstream, model: ScriptedModel, registry: ScriptedRegistry
) -> None:
    model.script = _forever
    with pytest.raises(DeadlineError):
        await chunks(upstream, within=0.2)
    await _all_left(registry)


# Failing


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (QueueFullError("full", retry_after=3.0), QueueFullError),
        (DrainingError("leaving", retry_after=3.0), DrainingError),
        (ContextLengthError("too long", param="prompt"), ContextLengthError),
        (WorkerDiedError("gone"), WorkerDiedError),
    ],
)
async def test_its_refusals_are_ours(
    upstream: Upstream, registry: ScriptedRegistry, error: HeadraceError, kind: type[HeadraceError]
) -> None:
    await upstream.learn()
    registry.error = error
    with pytest.raises(HeadraceError) as caught:
        await chunks(upstream)
    assert type(caught.value) is kind
    assert error.message in caught.value.message
    assert (caught.value.param, caught.value.retry_after) == (error.param, error.retry_after)


async def test_a_failure_in_the_stream_is_the_same_here(
    upstream: Upstream, model: ScriptedModel
) -> None:
    async def die(_model: ScriptedModel, asked: GenerationRequest) -> AsyncIterator[Chunk]:
        yield chunk_of("Hel", asked, 0, is_last=False, count=0)
        raise WorkerDiedError("the worker is gone")

    model.script = die
    got, error = await until_error(upstream)
    assert [chunk.text for chunk in got] == ["Hel"]
    assert type(error) is WorkerDiedError


async def test_a_model_that_is_not_there_is_no_fault_of_the_client(
    upstream: Upstream, registry: ScriptedRegistry
) -> None:
    await upstream.learn()
    registry.models = [ScriptedModel(info=info("other@1"))]
    with pytest.raises(UpstreamRefusedError, match="404"):
        await chunks(upstream)


async def test_a_server_without_models_is_not_healthy(
    upstream: Upstream, registry: ScriptedRegistry
) -> None:
    registry.models = []
    with pytest.raises(UpstreamBusyError):
        await upstream.probe()


# Going on


async def _think(_model: ScriptedModel, asked: GenerationRequest) -> AsyncIterator[Chunk]:
    """A real engine's answer, one chunk at a time."""
    engine = Engine(PagedExecutor(), ByteTokenizer(), EngineConfig())
    assert isinstance(asked.prompt, list)
    engine.add(asked, asked.prompt, 0.0)
    while engine.has_work:
        for delivery in engine.step(0.0):
            assert delivery.chunk is not None, delivery.error
            yield delivery.chunk
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"seed": 3, "n": 2, "stop": ("a",)},
        {"seed": 5, "logprobs": 1, "ignore_eos": True},
        {"temperature": 0.0, "frequency_penalty": 0.5},
    ],
)
async def test_an_answer_goes_on_wherever_it_was_cut(
    upstream: Upstream, model: ScriptedModel, sampling: dict[str, Any]
) -> None:
    model.script = _think
    asked = request([72, 105], **{"max_tokens": 12, **sampling})
    sent = [chunk async for chunk in upstream.generate(asked)]
    whole = {chunk.index: chunk for chunk in fold_chunks(sent)}
    for cut in range(len(sent)):
        progress = Resumable(asked)
        got = [progress.note(chunk) for chunk in sent[:cut]]
        got += [chunk async for chunk in upstream.generate(progress.resume(asked))]
        for chunk in fold_chunks(got):
            wanted = msgspec.structs.replace(whole[chunk.index], timing=chunk.timing)
            assert chunk == msgspec.structs.replace(wanted, usage=chunk.usage)
        assert progress.knows_tokens
        if cut == 0 or not any(chunk.finish_reason for chunk in sent[:cut]):
            spent = [(c.usage.prompt_tokens, c.usage.completion_tokens) for c in got if c.usage]
            assert sum(tokens for _, tokens in spent) == sum(
                chunk.usage.completion_tokens for chunk in whole.values() if chunk.usage
            )


async def test_every_chunk_tells_its_tokens(upstream: Upstream) -> None:
    assert [chunk.token_ids for chunk in await chunks(upstream)] == [[7]] * len(WORDS)
    echoed = await chunks(upstream, echo=True)
    assert [chunk.text for chunk in echoed] == ["Hi", *WORDS]
    assert not any(chunk.token_ids for chunk in echoed)


async def test_a_completion_goes_on_by_its_text(upstream: Upstream, model: ScriptedModel) -> None:
    asked = msgspec.structs.replace(request("Hi"), answered_text=" you")
    got = [chunk async for chunk in upstream.generate(asked)]
    assert model.requests[0].prompt == "Hi you"
    assert got[-1].usage is None  # of the prompt and the text together nothing is known


async def test_tokens_that_it_cannot_have_are_refused_there(
    upstream: Upstream, model: ScriptedModel
) -> None:
    async def refuse(_model: ScriptedModel, asked: GenerationRequest) -> AsyncIterator[Chunk]:
        Engine(PagedExecutor(), ByteTokenizer(), EngineConfig()).limits.check(asked, [1])
        yield chunk_of("", asked, 0, is_last=True, count=0)

    model.script = refuse
    asked = msgspec.structs.replace(request("Hi"), answered=(Answered([999], 1),))
    with pytest.raises(InvalidRequestError, match="token id 999") as caught:
        _ = [chunk async for chunk in upstream.generate(asked)]
    assert caught.value.param == "answered"
