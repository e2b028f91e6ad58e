"""Turns a body of OpenAI's API into what the engine takes, or says which field it cannot take."""

from collections.abc import Mapping, Sequence
from typing import cast

from headrace.api.openai.schema import (
    AnsweredBody,
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    ContentPart,
    SamplingFields,
)
from headrace.api.sampling import biases, given, require_min_below_max, stop_strings
from headrace.errors import InvalidRequestError, UnsupportedParameterError
from headrace.generation import Answered, Chat, Message, Prompt, SamplingParams

MAX_PROMPTS = 256
DEFAULT_MAX_TOKENS = 16  # of a completion, as OpenAI has it

# Values of unsupported fields that ask for nothing, besides null.
HARMLESS: Mapping[str, tuple[object, ...]] = {
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "prediction": (),
    "prompt_logprobs": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_HARMLESS_CHAT: Mapping[str, tuple[object, ...]] = {"echo": (False,), "prompt": ()}
_HARMLESS_COMPLETION: Mapping[str, tuple[object, ...]] = {
    "max_completion_tokens": (),
    "messages": (),
    "top_logprobs": (0,),
}
_HARMLESS_MESSAGE: Mapping[str, tuple[object, ...]] = {
    "tool_calls": ([],),
    "function_call": (),
    "audio": (),
}
_ROLES = {"developer": "system"}


def chat_prompt(body: ChatCompletionRequest) -> Chat:
    _refuse_unsupported(body, _HARMLESS_CHAT)
    return Chat(
        chat_messages(body.messages), add_generation_prompt=body.add_generation_prompt is not False
    )


def chat_messages(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    return tuple(_message(message, number) for number, message in enumerate(messages))


def chat_sampling(body: ChatCompletionRequest) -> SamplingParams:
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs: true.", param="top_logprobs")
    return _sampling(
        body,
        max_tokens=_chat_max_tokens(body),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        echo=False,
    )


def completion_prompts(body: CompletionRequest) -> list[Prompt]:
    """The prompts of a body: one for a text or token ids, several for a list of either."""
    _refuse_unsupported(body, _HARMLESS_COMPLETION)
    if isinstance(body.prompt, str):
        return [body.prompt]
    kinds = set(map(type, body.prompt))  # not a comprehension: this may be a long list
    if len(kinds) > 1:
        raise InvalidRequestError("prompt: a list must hold one kind of item.", param="prompt")
    if kinds == {int}:
        return [cast("list[int]", body.prompt)]
    if len(body.prompt) > MAX_PROMPTS:
        raise InvalidRequestError(
            f"prompt: {len(body.prompt)} prompts are over the limit of {MAX_PROMPTS}.",
            param="prompt",
        )
    return [_not_empty(prompt, i) for i, prompt in enumerate(cast("list[Prompt]", body.prompt))]


def completion_sampling(body: CompletionRequest) -> SamplingParams:
    echo = bool(body.echo)
    if body.max_tokens == 0 and not echo:
        raise InvalidRequestError("max_tokens: 0 is only allowed with echo.", param="max_tokens")
    if echo and body.logprobs is not None and (body.n or 1) > 1:
        # The scores of one prompt over and over would be an answer of hundreds of megabytes.
        raise InvalidRequestError("n must be 1 with echo and logprobs.", param="n")
    max_tokens = given(body.max_tokens, DEFAULT_MAX_TOKENS)
    return _sampling(body, max_tokens=max_tokens, logprobs=body.logprobs, echo=echo)


def answered_before(body: SamplingFields, num_prompts: int) -> tuple[Answered | None, ...]:
    """What the client has of an answer that it wants to be gone on with; empty: it has nothing."""
    known, num_choices = body.answered or [], body.n or 1
    if known and num_prompts > 1:
        raise InvalidRequestError("answered needs a single prompt.", param="answered")
    if len(known) > num_choices:
        raise InvalidRequestError(
            f"answered has {len(known)} entries, and n={num_choices} choices.", param="answered"
        )
    if not any(known):
        return ()
    return (*map(_answered, known), *[None] * (num_choices - len(known)))


def _answered(body: AnsweredBody | None) -> Answered | None:
    if body is None:
        return None
    return Answered(body.token_ids, body.num_characters, body.is_finished)


def _refuse_unsupported(body: SamplingFields, harmless: Mapping[str, tuple[object, ...]]) -> None:
    refuse_unsupported(body, HARMLESS)
    refuse_unsupported(body, harmless)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise UnsupportedParameterError(
            "best_of is not supported, unless equal to n.", param="best_of"
        )


def refuse_unsupported(body: object, harmless: Mapping[str, tuple[object, ...]]) -> None:
    """Name the first field that asks for what this server does not do."""
    for name, values in harmless.items():
        value = getattr(body, name)
        if value is not None and value not in values:
            raise UnsupportedParameterError(f"{name} is not supported.", param=name)


def _sampling(
    body: SamplingFields, *, max_tokens: int | None, logprobs: int | None, echo: bool
) -> SamplingParams:
    require_min_below_max(body.min_tokens, max_tokens)
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        temperature=given(body.temperature, 1.0),
        top_p=given(body.top_p, 1.0),
        top_k=max(0, body.top_k or 0),
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=given(body.repetition_penalty, 1.0),
        logit_bias=biases(body.logit_bias),
        seed=body.seed,
        logprobs=logprobs,
        n=body.n or 1,
        stop=stop_strings(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        skip_special_tokens=body.skip_special_tokens is not False,
        echo=echo,
    )


def _chat_max_tokens(body: ChatCompletionRequest) -> int | None:
    """Both names of one limit; `max_tokens` is the older one."""
    new, old = body.max_completion_tokens, body.max_tokens
    if new is not None and old is not None and new != old:
        raise InvalidRequestError(
            "max_tokens and max_completion_tokens differ; send one of them.", param="max_tokens"
        )
    return old if new is None else new


def _message(message: ChatMessage, number: int) -> Message:
    where = f"messages.{number}"
    if message.role in ("tool", "function"):
        raise UnsupportedParameterError(
            f"{where}.role: {message.role} is not supported.", param=f"{where}.role"
        )
    for name, values in _HARMLESS_MESSAGE.items():
        value = getattr(message, name)
        if value is not None and value not in values:
            raise UnsupportedParameterError(
                f"{where}.{name} is not supported.", param=f"{where}.{name}"
            )
    if message.content is None and message.role == "assistant":
        return Message(message.role, "", message.name)
    if message.content is None:
        raise InvalidRequestError(f"{where}.content is required.", param=f"{where}.content")
    role = _ROLES.get(message.role, message.role)
    return Message(role, _text(message.content, f"{where}.content"), message.name)


def _text(content: str | list[ContentPart], where: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_part(part, f"{where}.{i}") for i, part in enumerate(content))


def _part(part: ContentPart, where: str) -> str:
    if part.type != "text":
        raise UnsupportedParameterError(
            f"{where}: content of type {part.type[:40]!r} is not supported, only text.", param=where
        )
    if part.text is None:
        raise InvalidRequestError(f"{where}.text is required.", param=f"{where}.text")
    return part.text


def _not_empty(prompt: Prompt, number: int) -> Prompt:
    if prompt == []:
        raise InvalidRequestError(
            f"prompt.{number}: a list of token ids must not be empty.", param=f"prompt.{number}"
        )
    return prompt
