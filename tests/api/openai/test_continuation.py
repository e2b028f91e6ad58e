"""Answers of a real engine, cut off anywhere and gone on with in the words of OpenAI's API."""

import json
from collections import defaultdict
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from api.scripted import info
from engine.test_resumption import run
from headrace.api.meter import Meter
from headrace.api.openai.requests import answered_before, completion_prompts, completion_sampling
from headrace.api.openai.schema import CompletionRequest
from headrace.api.openai.stream import COMPLETION, DONE, Head, OpenAIWire
from headrace.engine.config import EngineConfig
from headrace.generation import GenerationRequest
from headrace.telemetry.metrics import Metrics

decode = msgspec.json.Decoder(CompletionRequest).decode


def events(body: dict[str, Any]) -> list[dict[str, Any]]:
    """What `/v1/completions` streams for a body, without the transport."""
    asked = decode(json.dumps({"model": "chat", **body}).encode())
    (prompt,) = completion_prompts(asked)
    request = GenerationRequest(
        request_id="r",
        prompt=prompt,
        sampling=completion_sampling(asked),
        answered=answered_before(asked, 1),
    )
    chunks, _ = run(request, EngineConfig())
    meter = Meter(Metrics("1"), "chat@1", arrived=0.0, num_choices=asked.n or 1)
    wire = OpenAIWire(
        COMPLETION,
        Head(id="x", created=1, model="chat"),
        info(),
        include_usage=True,
        return_token_ids=True,
    )
    streamed = b""
    for chunk in chunks:
        meter.observe(chunk)
        streamed += wire.event(chunk)
    streamed += wire.ending(meter.usage)
    assert streamed.endswith(DONE)
    lines = streamed.removesuffix(DONE).decode().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


class Received:
    """What a client has of each choice."""

    def __init__(self) -> None:
        self.texts = defaultdict[int, str](str)
        self.token_ids = defaultdict[int, list[int]](list)
        self.endings = dict[int, tuple[Any, Any]]()
        self.usage: Any = None

    def take(self, events: list[dict[str, Any]]) -> "Received":
        for event in events:
            self.usage = event["usage"]
            for choice in event["choices"]:
                index = choice["index"]
                self.texts[index] += choice["text"]
                self.token_ids[index] += choice["token_ids"]
                if choice["finish_reason"] is not None:
                    self.endings[index] = choice["finish_reason"], choice["stop_reason"]
        return self

    def answered(self, n: int) -> list[dict[str, Any] | None]:
        return [self._entry(index) if index in self.texts else None for index in range(n)]

    def _entry(self, index: int) -> dict[str, Any]:
        is_finished = index in self.endings
        return {
            "token_ids": [] if is_finished else self.token_ids[index],
            "num_characters": len(self.texts[index]),
            "is_finished": is_finished,
        }


@given(
    prompt=st.lists(st.integers(0, 255), min_size=1, max_size=12),
    sampling=st.fixed_dictionaries(
        {
            "max_tokens": st.integers(2, 30),
            "temperature": st.sampled_from([0.0, 1.2]),
            "seed": st.integers(0, 99),
            "n": st.sampled_from([1, 1, 3]),
            "stop": st.lists(st.text("ab 你", min_size=1, max_size=3), max_size=2),
            "ignore_eos": st.booleans(),
            "min_tokens": st.integers(0, 2),
            "frequency_penalty": st.sampled_from([0.0, 0.5]),
        }
    ),
    cut=st.integers(0, 200),
)
def test_a_cut_answer_goes_on_to_the_same_text_tokens_and_usage(
    prompt: list[int], sampling: dict[str, Any], cut: int
) -> None:
    body = {"prompt": prompt, **sampling}
    sent = events(body)
    whole = Received().take(sent)
    part = Received().take(sent[:cut])
    had_ended = len(part.endings)
    if had_ended == sampling["n"]:
        return
    part.take(events({**body, "answered": part.answered(sampling["n"])}))
    assert part.texts == whole.texts
    assert part.token_ids == whole.token_ids
    assert part.endings == whole.endings
    assert part.usage["prompt_tokens"] == whole.usage["prompt_tokens"]
    if not had_ended:  # what was whole before is counted no second time
        assert part.usage["completion_tokens"] == whole.usage["completion_tokens"]
