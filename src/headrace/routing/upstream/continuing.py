"""How an upstream is asked to go on with an answer that was begun elsewhere.

By its tokens, which a Headrace takes as they are; or by its text, which is put behind the prompt.
A text that is gone on with is read anew: penalties for tokens of the answer then know only those
that are still to come, and a seed draws from its beginning.
"""

from typing import Any, Literal

import msgspec

from headrace.errors import InvalidRequestError, UnsupportedParameterError
from headrace.generation import Answered, Chat, GenerationRequest, Message, SamplingParams
from headrace.routing.upstream.dialect import Dialect


def can_go_on(request: GenerationRequest, dialect: Dialect, by: Literal["tokens", "text"]) -> bool:
    """Whether a server of this kind can go on with the answer to a request, had it begun."""
    if by == "tokens":
        return dialect.resumes == "tokens"
    if request.sampling.n != 1:
        return False
    if isinstance(request.prompt, Chat):
        return dialect.chat_continuation is not None and _awaits_an_answer(request.prompt)
    return isinstance(request.prompt, str)


def continuation(request: GenerationRequest, dialect: Dialect) -> dict[str, Any]:
    """The fields of a body that say how to go on, besides the prompt."""
    if request.answered_text is not None:
        is_chat = isinstance(request.prompt, Chat)
        return dict(dialect.chat_continuation or {}) if is_chat else {}
    if not request.answered:
        return {}
    return {"answered": [None if each is None else _body(each) for each in request.answered]}


def what_remains(request: GenerationRequest, dialect: Dialect) -> GenerationRequest:
    """The request as it is to be sent: by text, the prompt with the answer so far."""
    has_begun = bool(request.answered) or request.answered_text is not None
    by: Literal["tokens", "text"] = "tokens" if request.answered_text is None else "text"
    if has_begun and not can_go_on(request, dialect, by):
        raise UnsupportedParameterError(
            f"this upstream, which speaks {dialect.name!r}, cannot go on with this answer,"
            f" which was begun elsewhere, by its {by}",
            param="answered",
        )
    if request.answered_text is None:
        return _without_echo(request) if all(request.answered) and has_begun else request
    return msgspec.structs.replace(
        request,
        prompt=_prompt(request, request.answered_text),
        sampling=_sampling(request),
    )


def _awaits_an_answer(chat: Chat) -> bool:
    """Whether the answer is a message of its own, and not the rest of the last one."""
    last = chat.messages[-1] if chat.messages else None
    return chat.add_generation_prompt and (last is None or last.role != "assistant")


def _body(answered: Answered) -> dict[str, Any]:
    return {
        "token_ids": answered.token_ids,
        "num_characters": answered.num_characters,
        "is_finished": answered.is_finished,
    }


def _prompt(request: GenerationRequest, text: str) -> str | Chat:
    if isinstance(request.prompt, Chat):
        answer = Message("assistant", text)
        return Chat((*request.prompt.messages, answer))
    assert isinstance(request.prompt, str)
    return request.prompt + text


def _without_echo(request: GenerationRequest) -> GenerationRequest:
    """It was sent with what was answered; only asked for without it, tokens are told apart."""
    params = request.sampling
    if not params.echo or params.max_tokens == 0:
        return request
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(params, echo=False))


def _sampling(request: GenerationRequest) -> SamplingParams:
    """What is left of the limits.

    Where nobody knows how many tokens the text was, the limits stay what they were: the answer may
    become longer than was asked for, but is never cut short.
    """
    params = request.sampling
    answered = request.answered[0] if request.answered else None
    num_before = 0 if answered is None else len(answered.token_ids)
    limit = params.max_tokens
    if limit is not None and num_before >= limit:
        raise InvalidRequestError(
            f"answered: {num_before} tokens leave nothing of max_tokens={limit}", param="answered"
        )
    return msgspec.structs.replace(
        params,
        max_tokens=None if limit is None else limit - num_before,
        min_tokens=max(0, params.min_tokens - num_before),
        echo=False,
    )
