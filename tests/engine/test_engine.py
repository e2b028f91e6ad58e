"""The engine over a model whose every answer depends on what its cache really holds."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.paged_executor import EOS, ByteTokenizer, PagedExecutor, greedy_answer
from headrace.engine.config import EngineConfig
from headrace.engine.delivery import Delivery
from headrace.engine.engine import Engine
from headrace.engine.stream import fold_chunks
from headrace.engine.vocabulary import TextStream
from headrace.errors import ContextLengthError, DeadlineError, HeadraceError, InvalidRequestError
from headrace.generation import Chunk, GenerationRequest, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


class Harness:
    """An engine, its model, and everything it has delivered."""

    def __init__(
        self, executor: PagedExecutor | None = None, config: EngineConfig | None = None
    ) -> None:
        self.executor = executor or PagedExecutor()
        self.engine = Engine(self.executor, ByteTokenizer(), config or EngineConfig())
        self.chunks: dict[str, list[Chunk]] = defaultdict(list)
        self.errors: dict[str, HeadraceError] = {}
        self.now = 0.0

    def add(
        self,
        request_id: str,
        prompt: list[int],
        sampling: SamplingParams = GREEDY,
        *,
        deadline: float | None = None,
        cache_salt: str = "",
    ) -> None:
        request = GenerationRequest(
            request_id=request_id,
            prompt=prompt,
            sampling=sampling,
            deadline=deadline,
            cache_salt=cache_salt,
        )
        self.engine.add(request, prompt, self.now)

    def step(self) -> list[Delivery]:
        self.now += 1
        deliveries = self.engine.step(self.now)
        self.engine.scheduler.check()
        for delivery in deliveries:
            if delivery.chunk is not None:
                self.chunks[delivery.request_id].append(delivery.chunk)
            else:
                assert delivery.error is not None
                self.errors[delivery.request_id] = delivery.error
        return deliveries

    def run(self) -> None:
        for _ in range(3000):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work
        assert self.engine.scheduler.pool.num_free == self.executor.num_blocks

    def answers(self, request_id: str) -> list[Chunk]:
        return sorted(fold_chunks(self.chunks[request_id]), key=lambda chunk: chunk.index)

    def token_ids(self, request_id: str) -> list[int]:
        (answer,) = self.answers(request_id)
        return answer.token_ids


def alone(prompt: list[int], sampling: SamplingParams) -> list[Chunk]:
    """What a request gets with the engine, and all the memory it may want, to itself."""
    harness = Harness(PagedExecutor(512, 16), EngineConfig(prefix_caching=False))
    harness.add("alone", prompt, sampling)
    harness.run()
    return harness.answers("alone")


def same_answers(found: list[Chunk], expected: list[Chunk]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.text == other.text
        assert one.logprobs == other.logprobs
        assert (one.finish_reason, one.stop_reason) == (other.finish_reason, other.stop_reason)


_SAMPLINGS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 12),
    min_tokens=st.integers(0, 1),
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 5]),
    min_p=st.sampled_from([0.0, 0.1]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logprobs=st.sampled_from([None, None, 0, 2]),
    echo=st.booleans(),
    ignore_eos=st.booleans(),
    n=st.sampled_from([1, 1, 2, 3]),
    seed=st.integers(0, 3),
    stop=st.sampled_from([(), ("a",), ("Z", "q")]),
)
_REQUESTS = st.tuples(
    st.integers(0, 20),  # how much of the shared prefix it starts with
    st.lists(st.integers(0, 255), min_size=1, max_size=16),
    _SAMPLINGS,
    st.integers(0, 30),  # the step it arrives at
    st.none() | st.integers(0, 40),  # the step it is aborted at
    st.sampled_from(["", "", "tenant"]),
)


_CONFIGS = st.builds(
    EngineConfig,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 40),
    prefix_caching=st.booleans(),
)


@settings(max_examples=60)
@given(
    requests=st.lists(_REQUESTS, min_size=1, max_size=10),
    block_size=st.sampled_from([1, 2, 4, 8]),
    num_spare_blocks=st.integers(0, 30),
    config=_CONFIGS,
)
def test_every_answer_equals_the_one_given_alone_under_random_loads(
    requests: list[tuple[int, list[int], SamplingParams, int, int | None, str]],
    block_size: int,
    num_spare_blocks: int,
    config: EngineConfig,
) -> None:
    prefix = list(range(100, 120))
    longest = max(shared + len(body) + s.max_tokens for shared, body, s, *_ in requests)
    harness = Harness(
        PagedExecutor(-(-longest // block_size) + num_spare_blocks, block_size), config
    )
    arrivals = defaultdict(list)
    aborts = defaultdict(list)
    for number, (shared, body, sampling, arrival, abort, salt) in enumerate(requests):
        arrivals[arrival].append((str(number), prefix[:shared] + body, sampling, salt))
        if abort is not None:
            aborts[abort].append(str(number))
    for step in range(41):
        for request_id, prompt, sampling, salt in arrivals[step]:
            harness.add(request_id, prompt, sampling, cache_salt=salt)
        for request_id in aborts[step]:
            harness.engine.abort(request_id)
        harness.step()
    harness.run()
    assert not harness.errors
    for number, (shared, body, sampling, _, abort, _) in enumerate(requests):
        if abort is None:
            same_answers(harness.answers(str(number)), alone(prefix[:shared] + body, sampling))


def test_a_greedy_answer_is_the_models_own() -> None:
    harness = Harness(config=EngineConfig(max_num_batched_tokens=7))
    prompt = list(range(30))
    harness.add("a", prompt)
    harness.run()
    assert harness.token_ids("a") == greedy_answer(prompt, 8)


def test_an_answer_ends_at_end_of_sequence_unless_told_otherwise() -> None:
    prompt = next(p for p in ([k, 1] for k in range(256)) if EOS in greedy_answer(p, 40))
    expected = greedy_answer(prompt, 40)
    harness = Harness()
    harness.add("a", prompt, SamplingParams(temperature=0, max_tokens=40))
    harness.run()
    (answer,) = harness.answers("a")
    assert answer.token_ids == expected
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)


def test_a_whole_cached_prompt_computes_its_last_block_again_and_reports_the_rest() -> None:
    harness = Harness()
    prompt = list(range(16))
    for request_id in ("first", "second"):
        harness.add(request_id, prompt)
        harness.run()
    usages = [harness.answers(request_id)[0].usage for request_id in ("first", "second")]
    assert [usage and usage.cached_tokens for usage in usages] == [0, 12]
    assert harness.token_ids("first") == harness.token_ids("second")


def test_tenants_with_different_salts_share_no_blocks() -> None:
    harness = Harness()
    for salt in ("one", "other"):
        harness.add(salt, list(range(16)), cache_salt=salt)
        harness.run()
    assert harness.engine.stats.num_prefix_cache_hits == 0


def test_siblings_reuse_the_prompt_of_the_first_sequence() -> None:
    harness = Harness()
    sampling = SamplingParams(max_tokens=4, n=3, seed=1, ignore_eos=True)
    harness.add("a", list(range(17)), sampling)
    harness.run()
    usages = [answer.usage for answer in harness.answers("a")]
    assert [usage and usage.cached_tokens for usage in usages] == [0, 16, 16]
    assert len({tuple(answer.token_ids) for answer in harness.answers("a")}) == 3


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    harness = Harness(PagedExecutor(1200, 4, 4800), EngineConfig(max_num_batched_tokens=64))
    harness.add("long", [1] * 4000)
    harness.step()
    harness.add("short", [2] * 20)
    harness.step()
    assert harness.executor.batches[-1].num_new_tokens.tolist() == [20, 44]


def test_a_long_prompt_is_not_overtaken_for_ever() -> None:
    harness = Harness(
        PagedExecutor(100, 4), EngineConfig(max_num_batched_tokens=16, max_num_seqs=1)
    )
    harness.add("first", [9] * 8)
    harness.step()
    harness.add("long", [1] * 60)
    one_token = SamplingParams(temperature=0, max_tokens=1)
    for number in range(200):
        harness.add(str(number), [number % 200] * 8, one_token)
        harness.step()
        if harness.chunks["long"]:
            break
    assert harness.chunks["long"]


def test_running_sequences_get_their_token_while_a_long_prompt_is_computed() -> None:
    harness = Harness(PagedExecutor(1200, 4, 4800), EngineConfig(max_num_batched_tokens=64))
    harness.add("running", [5] * 4, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    harness.step()
    harness.add("long", [1] * 1000)
    for _ in range(10):
        harness.step()
        assert harness.executor.batches[-1].num_new_tokens.tolist() == [1, 32]


def test_the_youngest_sequence_is_preempted_first_and_still_answers_right() -> None:
    harness = Harness(PagedExecutor(9, 2))
    sampling = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    prompts = {"old": [1, 2, 3, 4], "young": [5, 6, 7, 8]}
    for request_id, prompt in prompts.items():
        harness.add(request_id, prompt, sampling)
    harness.run()
    assert harness.engine.stats.num_preemptions > 0
    assert list(harness.chunks) == ["old", "young"]
    old, young = (harness.answers(request_id)[0].timing for request_id in prompts)
    assert old is not None
    assert young is not None
    assert old.generation_time == 9
    assert young.generation_time > 9
    for request_id, prompt in prompts.items():
        assert harness.token_ids(request_id) == greedy_answer_of(prompt, 10)


def greedy_answer_of(prompt: list[int], count: int) -> list[int]:
    """As the model answers when the end of sequence does not stop it."""
    tokens = list(prompt)
    for _ in range(count):
        tokens += greedy_answer(tokens, 1)
    return tokens[len(prompt) :]


def test_a_request_too_big_for_the_memory_is_refused_and_others_go_on() -> None:
    harness = Harness(PagedExecutor(4, 4))
    harness.add("small", [1, 2, 3])
    with pytest.raises(ContextLengthError, match="20 tokens, and the context of 16") as caught:
        harness.add("big", [1] * 20)
    assert caught.value.param == "prompt"
    with pytest.raises(ContextLengthError, match="max_tokens=8") as caught:
        harness.add("big", [1] * 10)
    assert caught.value.param == "max_tokens"
    harness.run()
    assert len(harness.token_ids("small")) == 8


def test_without_max_tokens_an_answer_fills_the_context() -> None:
    harness = Harness(PagedExecutor(4, 4))
    harness.add("a", [1, 2, 3], SamplingParams(temperature=0, ignore_eos=True))
    harness.run()
    assert len(harness.token_ids("a")) == 13


@pytest.mark.parametrize(
    ("prompt", "sampling", "param"),
    [
        ([], GREEDY, "prompt"),
        ([257], GREEDY, "prompt"),
        ([-1], GREEDY, "prompt"),
        ([1], SamplingParams(max_tokens=0), "max_tokens"),
        ([1], SamplingParams(temperature=-1), "temperature"),
        ([1], SamplingParams(temperature=float("nan")), "temperature"),
        ([1], SamplingParams(temperature=float("inf")), "temperature"),
        ([1], SamplingParams(top_p=0), "top_p"),
        ([1], SamplingParams(top_p=1.1), "top_p"),
        ([1], SamplingParams(top_k=-1), "top_k"),
        ([1], SamplingParams(min_p=2), "min_p"),
        ([1], SamplingParams(repetition_penalty=0), "repetition_penalty"),
        ([1], SamplingParams(presence_penalty=float("inf")), "presence_penalty"),
        ([1], SamplingParams(logit_bias={257: 1.0}), "logit_bias"),
        ([1], SamplingParams(logit_bias={2: float("nan")}), "logit_bias"),
        ([1], SamplingParams(logit_bias={2: -1e39}), "logit_bias"),
        ([1], SamplingParams(stop_token_ids=(300,)), "stop_token_ids"),
        ([1], SamplingParams(stop=("",)), "stop"),
        ([1], SamplingParams(n=0), "n"),
        ([1], SamplingParams(n=1000), "n"),
        ([1], SamplingParams(logprobs=21), "logprobs"),
        ([1], SamplingParams(max_tokens=3, min_tokens=4), "min_tokens"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_naming_the_field(
    prompt: list[int], sampling: SamplingParams, param: str
) -> None:
    harness = Harness()
    with pytest.raises(InvalidRequestError) as caught:
        harness.add("a", prompt, sampling)
    assert caught.value.param == param
    assert not harness.engine.has_work


def test_an_abort_frees_the_blocks_at_once_and_delivers_nothing_more() -> None:
    harness = Harness()
    harness.add("a", list(range(20)), SamplingParams(max_tokens=50, n=4, ignore_eos=True))
    for _ in range(3):
        harness.step()
    harness.chunks.clear()
    harness.engine.abort("a")
    assert harness.engine.scheduler.pool.num_free == harness.executor.num_blocks
    assert not harness.engine.has_work
    assert harness.step() == []
    assert harness.engine.stats.num_aborted == 1


def test_a_waiting_request_past_its_deadline_is_never_started() -> None:
    harness = Harness(config=EngineConfig(max_num_seqs=1))
    harness.add("running", [1])
    harness.step()
    harness.add("late", [2], deadline=2.5)
    harness.run()
    assert isinstance(harness.errors["late"], DeadlineError)
    assert not harness.chunks["late"]
    assert all(2 not in batch.token_ids[:1] for batch in harness.executor.batches[:1])
    assert len(harness.token_ids("running")) == 8


def test_a_running_request_past_its_deadline_ends_with_an_error_and_frees_its_blocks() -> None:
    harness = Harness()
    harness.add("a", [1], deadline=3.0)
    harness.step()
    harness.step()
    harness.step()
    assert isinstance(harness.errors["a"], DeadlineError)
    assert not harness.engine.has_work
    assert harness.engine.scheduler.pool.num_free == harness.executor.num_blocks


def test_a_request_the_executor_refuses_fails_alone() -> None:
    harness = Harness()
    harness.executor.poison = 77
    for request_id, token in (("good", 1), ("bad", 77), ("fine", 3)):
        harness.add(request_id, [token] * 3)
    harness.run()
    assert harness.errors["bad"].code == "internal_error"
    assert list(harness.errors) == ["bad"]
    for request_id, token in (("good", 1), ("fine", 3)):
        assert harness.token_ids(request_id) == greedy_answer_of([token] * 3, 8)


class NanExecutor(PagedExecutor):
    """Its logits after a prompt that starts with token 66 are no numbers."""

    def predict(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        logits = super().predict(token_ids)
        return np.full_like(logits, np.nan) if token_ids[:1] == [66] else logits


def test_a_request_that_cannot_be_sampled_fails_alone() -> None:
    harness = Harness(NanExecutor())
    sampling = SamplingParams(max_tokens=5, seed=1, ignore_eos=True)
    for request_id, token in (("good", 1), ("bad", 66), ("fine", 3)):
        harness.add(request_id, [token] * 3, sampling)
    harness.run()
    assert list(harness.errors) == ["bad"]
    for request_id, token in (("good", 1), ("fine", 3)):
        same_answers(harness.answers(request_id), alone([token] * 3, sampling))


class BrokenTokenizer(ByteTokenizer):
    def detokenizer(self, prompt_ids: object, **_options: bool) -> TextStream:
        return BrokenStream() if list(prompt_ids) == [66] else super().detokenizer([])


class BrokenStream:
    def push(self, _token_id: int) -> str:
        raise KeyError("no such token")

    def flush(self) -> str:
        return ""


def test_a_request_whose_text_cannot_be_made_fails_alone() -> None:
    harness = Harness()
    harness.engine = Engine(harness.executor, BrokenTokenizer(), EngineConfig())
    for request_id, token in (("good", 1), ("bad", 66), ("fine", 3)):
        harness.add(request_id, [token])
    harness.run()
    assert harness.errors["bad"].code == "internal_error"
    assert len(harness.token_ids("good")) == len(harness.token_ids("fine")) == 8


def test_a_prompt_is_scored_without_generating() -> None:
    harness = Harness(config=EngineConfig(max_num_batched_tokens=10))
    prompt = list(range(150, 180))
    sampling = SamplingParams(temperature=0, max_tokens=0, echo=True, logprobs=2)
    for request_id in ("first", "cached"):  # a cached prompt is scored just the same
        harness.add(request_id, prompt, sampling)
        harness.run()
        (answer,) = harness.answers(request_id)
        assert answer.finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 0
        assert answer.logprobs is not None
        assert [logprob.token_id for logprob in answer.logprobs] == prompt
        assert answer.logprobs[0].logprob is None
        assert all(len(logprob.top) == 2 for logprob in answer.logprobs[1:])


def test_timing_speaks_of_the_callers_clock() -> None:
    harness = Harness(config=EngineConfig(max_num_batched_tokens=8, max_num_seqs=1))
    harness.add("first", [1], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    harness.add("second", [2] * 12, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    harness.run()
    first, second = (harness.answers(request_id)[0].timing for request_id in ("first", "second"))
    assert first is not None
    assert second is not None
    assert (first.queue_time, first.time_to_first_token, first.generation_time) == (1, 1, 2)
    assert (second.queue_time, second.time_to_first_token, second.generation_time) == (4, 5, 2)
    assert first.batch_size == 1


def test_a_request_id_in_progress_is_refused() -> None:
    harness = Harness()
    harness.add("a", [1])
    with pytest.raises(InvalidRequestError, match="already in progress"):
        harness.add("a", [1])


def test_siblings_waited_as_long_as_their_request() -> None:
    harness = Harness()
    harness.add("a", [5, 6, 7], SamplingParams(temperature=0, max_tokens=2, n=2))
    for _ in range(6):
        harness.step()
    assert [answer.timing.queue_time for answer in harness.answers("a") if answer.timing] == [1, 1]
