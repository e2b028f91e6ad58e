"""From a body of OpenAI's API to the requests that it makes of a model."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.api.body import decode_json
from headrace.api.exchange import new_id
from headrace.api.openai.asked import Asked, AskedChat, AskedCompletion, without_body
from headrace.api.openai.requests import (
    answered_before,
    chat_prompt,
    chat_sampling,
    completion_prompts,
    completion_sampling,
)
from headrace.api.openai.schema import ChatCompletionRequest, CompletionRequest
from headrace.api.openai.stream import CHAT, COMPLETION, Dialect, Head
from headrace.errors import InvalidRequestError
from headrace.generation import GenerationRequest, Prompt, SamplingParams

Body = ChatCompletionRequest | CompletionRequest


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """A body's requests, which differ in their prompts only, and what its client is to be told."""

    head: Head
    requests: list[GenerationRequest]
    include_usage: bool
    return_token_ids: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Where chat and completions differ."""

    path: Literal["chat/completions", "completions"]
    asked: type[Asked]
    dialect: Dialect
    read: Callable[[bytes], tuple[Body, list[Prompt], SamplingParams]]

    def parse(self, body: bytes, deadline: float, trace: Mapping[str, str]) -> Parsed:
        fields, prompts, sampling = self.read(body)
        head = Head(
            id=f"{self.dialect.id_prefix}-{new_id()}", created=int(time.time()), model=fields.model
        )
        answered = answered_before(fields, len(prompts))
        return Parsed(
            head=head,
            requests=[
                GenerationRequest(
                    request_id=f"{head.id}-{number}",
                    prompt=prompt,
                    sampling=sampling,
                    deadline=deadline,
                    user=fields.user,
                    trace=dict(trace),
                    answered=answered,
                )
                for number, prompt in enumerate(prompts)
            ],
            include_usage=_include_usage(fields),
            return_token_ids=bool(fields.return_token_ids),
        )


@dataclass(slots=True, kw_only=True)
class Posted:
    """A body as it came, of which only so much is read as whoever passes it on must know."""

    kind: Kind
    body: bytes
    asked: Asked
    deadline: float
    trace: Mapping[str, str]

    @property
    def stream(self) -> bool:
        return bool(self.asked.stream)

    def forget(self) -> None:
        """Let go of the body: nobody will read it again."""
        self.body = b""
        self.asked = without_body(self.asked)

    def parse(self) -> Parsed:
        """Read all of it; refuses what no model of ours can do, by the name of the field."""
        return self.kind.parse(self.body, self.deadline, self.trace)


def _read_chat(body: bytes) -> tuple[Body, list[Prompt], SamplingParams]:
    fields = decode_json(body, ChatCompletionRequest)
    prompt = chat_prompt(fields)
    return fields, [prompt], chat_sampling(fields)


def _read_completion(body: bytes) -> tuple[Body, list[Prompt], SamplingParams]:
    fields = decode_json(body, CompletionRequest)
    prompts = completion_prompts(fields)
    return fields, prompts, completion_sampling(fields)


def _include_usage(body: Body) -> bool:
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InvalidRequestError("stream_options needs stream: true.", param="stream_options")
    return bool(body.stream_options.include_usage)


CHAT_KIND = Kind(path="chat/completions", asked=AskedChat, dialect=CHAT, read=_read_chat)
COMPLETION_KIND = Kind(
    path="completions", asked=AskedCompletion, dialect=COMPLETION, read=_read_completion
)
