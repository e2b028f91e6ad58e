import json
from typing import Any

import pytest

from headrace.api.openai.continuation import what_remains
from headrace.api.openai.sent import Sent, read_sent
from headrace.generation import Answered, GenerationRequest, SamplingParams

HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "theirs"}


def request(n: int = 1, *, answered: tuple[Answered | None, ...] = (), **more: Any) -> Any:
    sampling = SamplingParams(n=n, **more)
    return GenerationRequest(request_id="r", prompt="p", sampling=sampling, answered=answered)


def written(*choices: dict[str, Any], **head: Any) -> bytes:
    body = {**HEAD, **head, "choices": list(choices)}
    return f"data: {json.dumps(body)}\n\n".encode()


def delta(content: str | None, index: int = 0, finish: str | None = None, **more: Any) -> Any:
    added = {"content": content, **more.pop("delta", {})}
    return {"index": index, "delta": added, "finish_reason": finish, **more}


def sent(kept: bytes, n: int = 1) -> Sent:
    found = read_sent(kept, request(n))
    assert found is not None
    return found


GREETING = delta("", delta={"role": "assistant", "refusal": None, "tool_calls": []})


def test_what_was_sent_is_read_from_its_events() -> None:
    found = sent(
        written(GREETING, system_fingerprint="fp")
        + b": ping\n\n"
        + written(delta("Wa", token_ids=[1]))
        + written(delta("ter é", token_ids=[2, 3]))
        + written(usage=None)
    )
    assert (found.head.id, found.head.created, found.head.model) == ("c1", 5, "theirs")
    assert found.fingerprint == "fp"
    assert found.text(0) == "Water é"
    assert found.answered(0) == Answered([1, 2, 3], 7)


def test_choices_are_told_apart() -> None:
    found = sent(
        written(delta("a", 0, token_ids=[1]), delta("b", 1, token_ids=[2]))
        + written(delta("c", 1, "stop", token_ids=[3])),
        n=3,
    )
    assert [found.answered(index) for index in range(3)] == [
        Answered([1], 1),
        Answered([], 0, is_finished=True),
        None,
    ]


@pytest.mark.parametrize(
    "kept",
    [
        b"",
        b"data: {\n\n",
        b'data: {"choices":[]}\n\n',
        written(),
        written(delta(None, delta={"reasoning_content": "hm"})),
        written(delta(None, delta={"tool_calls": [{"index": 0}]})),
        written(delta("a", delta={"refusal": "no"})),
    ],
)
def test_what_chunks_have_no_word_for_is_not_gone_on_with(kept: bytes) -> None:
    assert read_sent(kept, request()) is None


def test_tokens_that_are_known_are_gone_on_with() -> None:
    rest = what_remains(request(), sent(written(delta("ab", token_ids=[1, 2]))), tells_tokens=True)
    assert rest is not None
    assert (rest.answered, rest.answered_text) == ((Answered([1, 2], 2),), None)


@pytest.mark.parametrize(
    ("choices", "tells"),
    [
        ([GREETING, delta("ab", token_ids=[1])], True),
        ([delta("", token_ids=[1]), delta("ab", token_ids=[])], True),
        ([delta("ab")], False),
        ([delta("ab", token_ids=None)], False),
        ([delta("ab", token_ids=[])], False),
        ([delta("a", token_ids=[1]), delta("b")], False),
        ([delta("a", 0, token_ids=[1]), delta("b", 1, token_ids=[])], False),
    ],
)
def test_text_without_tokens_tells_that_they_are_unknown(
    choices: list[Any], *, tells: bool
) -> None:
    assert sent(b"".join(map(written, choices)), n=2).tells_tokens is tells


def test_what_the_client_had_before_counts_too() -> None:
    earlier = request(answered=(Answered([1], 4),))
    rest = what_remains(earlier, sent(written(delta("ab", token_ids=[2]))), tells_tokens=True)
    assert rest is not None
    assert rest.answered == (Answered([1, 2], 6),)


def test_without_tokens_the_text_is_gone_on_with() -> None:
    rest = what_remains(request(), sent(written(GREETING, delta("ab"))), tells_tokens=False)
    assert rest is not None
    assert (rest.answered, rest.answered_text) == ((), "ab")


def test_an_answer_without_words_yet_is_asked_for_anew() -> None:
    asked = request()
    assert what_remains(asked, sent(written(GREETING)), tells_tokens=False) == asked


@pytest.mark.parametrize(
    "asked", [request(2), request(echo=True), request(answered=(Answered([1], 4),))]
)
def test_text_alone_is_not_always_enough(asked: GenerationRequest) -> None:
    assert what_remains(asked, sent(written(delta("ab"))), tells_tokens=False) is None
