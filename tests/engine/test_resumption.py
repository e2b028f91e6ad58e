"""Answers that other engines began, with tokens of parts of characters and of stop strings."""

from collections.abc import Sequence

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.paged_executor import EOS, ByteStream, ByteTokenizer, PagedExecutor
from headrace.engine.config import EngineConfig
from headrace.engine.engine import Engine
from headrace.engine.stream import fold_chunks
from headrace.generation import Answered, Chunk, GenerationRequest, SamplingParams
from headrace.routing.attempts.resumable import Resumable

PIECES = [b"a", b"b", b"ab", b"ba", b"aab", b"bba", b" ", b"", b"aba b"]
PIECES += ["你".encode()[:1], "你".encode()[1:], "好".encode()]
PIECES += [b"a" + "😀".encode()[:2], "😀".encode()[2:] + b"b"]


class PieceStream(ByteStream):
    def push(self, token_id: int) -> str:
        return self._decoder.decode(piece(token_id))


class PieceTokenizer(ByteTokenizer):
    def token_bytes(self, token_id: int) -> bytes:
        return piece(token_id)

    def detokenizer(self, _prompt_ids: Sequence[int], **_options: bool) -> PieceStream:
        return PieceStream()


def piece(token_id: int) -> bytes:
    return b"" if token_id == EOS else PIECES[token_id % len(PIECES)]


def run(
    request: GenerationRequest, config: EngineConfig, num_steps: int | None = None
) -> tuple[list[Chunk], bool]:
    """The chunks of an engine that ends after some steps, and whether it was done by then."""
    assert isinstance(request.prompt, list)
    engine = Engine(PagedExecutor(512, 4), PieceTokenizer(), config)
    engine.add(request, request.prompt, 0.0)
    chunks, now = [], 0
    while engine.has_work and now != num_steps:
        now += 1
        for delivery in engine.step(float(now)):
            assert delivery.chunk is not None, delivery.error
            chunks.append(delivery.chunk)
        engine.scheduler.check()
    return chunks, not engine.has_work


def answers(chunks: list[Chunk]) -> list[tuple[object, ...]]:
    """Whole ones, without what depends on when and where they were computed."""
    whole = list[tuple[object, ...]]()
    for chunk in sorted(fold_chunks(chunks), key=lambda chunk: chunk.index):
        usage = chunk.usage
        assert usage is not None
        assert usage.cached_tokens <= usage.prompt_tokens
        counts = (usage.prompt_tokens, usage.completion_tokens)
        ending = (chunk.finish_reason, chunk.stop_reason, counts)
        whole.append((chunk.text, chunk.token_ids, chunk.logprobs, ending))
    return whole


_STOPS = st.lists(st.text("ab 你", min_size=1, max_size=4), max_size=3).map(tuple)
_SAMPLINGS = st.builds(
    SamplingParams,
    max_tokens=st.integers(5, 40),
    min_tokens=st.integers(0, 5),
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    top_p=st.sampled_from([1.0, 0.9]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.sampled_from([{}, {3: 2.0, 9: -1.0}]),
    seed=st.integers(0, 99),
    logprobs=st.sampled_from([None, None, 0, 2]),
    echo=st.booleans(),
    n=st.sampled_from([1, 1, 2, 3]),
    stop=_STOPS,
    stop_token_ids=st.sampled_from([(), (), (5, 70)]),
    ignore_eos=st.booleans(),
)
_CONFIGS = st.builds(
    EngineConfig,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 40),
    prefix_caching=st.booleans(),
)


@settings(max_examples=200)
@given(
    prompt=st.lists(st.integers(0, 255), min_size=1, max_size=20),
    sampling=_SAMPLINGS,
    lives=st.lists(st.tuples(_CONFIGS, st.integers(1, 25)), max_size=3),
)
@example(  # the second sequence still owes its scored echo
    prompt=[1, 2, 3],
    sampling=SamplingParams(
        n=2, echo=True, logprobs=2, max_tokens=9, temperature=0.8, seed=1, ignore_eos=True
    ),
    lives=[(EngineConfig(max_num_seqs=1), 4)],
)
def test_an_answer_goes_on_elsewhere_as_if_nothing_had_happened(
    prompt: list[int], sampling: SamplingParams, lives: list[tuple[EngineConfig, int]]
) -> None:
    request = GenerationRequest(request_id="r", prompt=prompt, sampling=sampling)
    undisturbed, _ = run(request, EngineConfig())
    answer, found, asked, is_done = Resumable(request), list[Chunk](), request, False
    for config, num_steps in [*lives, (EngineConfig(), 3000)]:
        if not is_done:
            chunks, is_done = run(asked, config, num_steps)
            found += [answer.note(chunk) for chunk in chunks]
            asked = answer.resume(request)
    assert is_done
    assert answers(found) == answers(undisturbed)


@given(
    prompt=st.lists(st.integers(0, 255), min_size=1, max_size=20),
    sampling=_SAMPLINGS,
    tokens=st.integers(0, 40),
    characters=st.integers(0, 120),
)
def test_what_was_sent_may_hold_more_tokens_than_text_or_less(
    prompt: list[int], sampling: SamplingParams, tokens: int, characters: int
) -> None:
    sampling = msgspec.structs.replace(sampling, n=1, echo=False, logprobs=None)
    request = GenerationRequest(request_id="r", prompt=prompt, sampling=sampling)
    (whole,) = fold_chunks(run(request, EngineConfig())[0])
    token_ids = whole.token_ids[: min(tokens, len(whole.token_ids) - 1)]
    num_sent = min(characters, len(whole.text))
    known = Answered(token_ids, num_sent)
    (rest,) = fold_chunks(
        run(msgspec.structs.replace(request, answered=(known,)), EngineConfig())[0]
    )
    assert rest.text == whole.text[num_sent:]
    assert rest.token_ids[-1:] == whole.token_ids[-1:]
    assert (rest.finish_reason, rest.stop_reason) == (whole.finish_reason, whole.stop_reason)
