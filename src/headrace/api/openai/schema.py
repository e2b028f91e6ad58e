"""The bodies of OpenAI's API, as far as this server speaks it, with types, ranges and words."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.api.sampling import (
    MAX_CHOICES,
    MAX_PROMPT_TOKENS,
    MAX_TOP_LOGPROBS,
    Choices,
    LogitBias,
    MaxTokens,
    MinP,
    MinTokens,
    Penalty,
    RepetitionPenalty,
    Seed,
    Stop,
    StopTokenIds,
    Temperature,
    TokenId,
    TopK,
    TopP,
    User,
)

MAX_CHARACTERS = 1 << 31

ModelName = Annotated[
    str, Meta(min_length=1, max_length=256, description="A served model: name or name@version.")
]
TopLogprobs = Annotated[
    int, Meta(ge=0, le=MAX_TOP_LOGPROBS, description="Likeliest tokens to list at each position.")
]
Ignored = Annotated[Any, Meta(description="Accepted and without effect.")]
Unsupported = Annotated[Any, Meta(description="Not supported: a value that asks for it is a 400.")]


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream carries besides the answer."""

    include_usage: bool | None = None


class UnservedFields(msgspec.Struct, kw_only=True):
    """What other servers or routes take, and no route of this one that generates."""

    allowed_token_ids: Unsupported = None
    audio: Unsupported = None
    bad_words: Unsupported = None
    chat_template: Unsupported = None
    chat_template_kwargs: Unsupported = None
    continue_final_message: Unsupported = None
    function_call: Unsupported = None
    functions: Unsupported = None
    guided_choice: Unsupported = None
    guided_grammar: Unsupported = None
    guided_json: Unsupported = None
    guided_regex: Unsupported = None
    include_stop_str_in_output: Unsupported = None
    length_penalty: Unsupported = None
    modalities: Unsupported = None
    prediction: Unsupported = None
    prompt_logprobs: Unsupported = None
    reasoning_effort: Unsupported = None
    response_format: Unsupported = None
    service_tier: Unsupported = None
    store: Unsupported = None
    structured_outputs: Unsupported = None
    suffix: Unsupported = None
    tool_choice: Unsupported = None
    tools: Unsupported = None
    truncate_prompt_tokens: Unsupported = None
    use_beam_search: Unsupported = None
    verbosity: Unsupported = None
    web_search_options: Unsupported = None


class AnsweredBody(msgspec.Struct, kw_only=True):
    """What the client has of one choice, from a server that ended before it was whole."""

    token_ids: Annotated[list[TokenId], Meta(max_length=MAX_PROMPT_TOKENS)] = []
    num_characters: Annotated[
        int, Meta(ge=0, le=MAX_CHARACTERS, description="Of its text that the client has.")
    ] = 0
    is_finished: bool = False


Answered = Annotated[
    list[AnsweredBody | None],
    Meta(
        max_length=MAX_CHOICES,
        description="An answer begun elsewhere, choice by choice: only what follows is sent.",
    ),
]


class SamplingFields(UnservedFields, kw_only=True):
    """What chat and completions have in common."""

    model: ModelName
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: LogitBias | None = None
    seed: Seed | None = None
    n: Choices | None = None
    stop: Stop | None = None
    stop_token_ids: StopTokenIds | None = None
    min_tokens: MinTokens | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: (
        Annotated[bool, Meta(description="Whether choices carry their `token_ids`.")] | None
    ) = None
    answered: Answered | None = None
    user: User | None = None
    metadata: Ignored = None
    parallel_tool_calls: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    best_of: Unsupported = None


class ContentPart(msgspec.Struct):
    """A part of a message; only text is served."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: Unsupported = None
    function_call: Unsupported = None
    audio: Unsupported = None


class ChatCompletionRequest(SamplingFields, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: MaxTokens | None = None
    max_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    add_generation_prompt: bool | None = None
    echo: Unsupported = None
    prompt: Unsupported = None


class CompletionRequest(SamplingFields, kw_only=True):
    """`POST /v1/completions`."""

    prompt: Annotated[
        str
        | Annotated[
            list[str | TokenId | Annotated[list[TokenId], Meta(max_length=MAX_PROMPT_TOKENS)]],
            Meta(min_length=1, max_length=MAX_PROMPT_TOKENS),
        ],
        Meta(description="A text, token ids, or a list of one of the two."),
    ]
    max_tokens: Annotated[int, Meta(ge=0, le=1 << 31, description="Unset: 16.")] | None = None
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    max_completion_tokens: Unsupported = None
    messages: Unsupported = None
    top_logprobs: Unsupported = None


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class UsageBody(msgspec.Struct, frozen=True):
    """Tokens of a whole request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprobBody(msgspec.Struct, frozen=True):
    """One likely token."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobBody(msgspec.Struct, frozen=True):
    """A token of the answer, with the likeliest ones at its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprobBody]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of a chat's answer."""

    content: list[TokenLogprobBody]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of a completion, as parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class AnswerMessage(msgspec.Struct, frozen=True):
    """The turn that the model wrote."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a chat."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A full answer of `POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageBody | None


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation of a prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A full answer of `POST /v1/completions`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageBody | None


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "headrace"
    version: str
    state: str
    max_model_len: int | None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Every served model."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
