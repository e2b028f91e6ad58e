"""Types and ranges of sampling fields, shared by every route that generates."""

from typing import Annotated, TypeVar

from msgspec import Meta

from headrace.errors import InvalidRequestError

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_PROMPT_TOKENS = 1 << 18  # token ids in one list; more would hold the event loop up

Temperature = Annotated[
    float, Meta(ge=0, le=2, description="0 is greedy; above 1 flattens the distribution.")
]
TopP = Annotated[
    float, Meta(gt=0, le=1, description="Sample from the likeliest tokens of this total share.")
]
TopK = Annotated[
    int, Meta(ge=-1, le=1 << 31, description="Sample from this many; 0 or -1: from all.")
]
MinP = Annotated[
    float, Meta(ge=0, le=1, description="Drop tokens under this share of the likeliest.")
]
Penalty = Annotated[
    float, Meta(ge=-2, le=2, description="Above 0 makes tokens of the answer less likely again.")
]
RepetitionPenalty = Annotated[
    float, Meta(ge=0.01, le=100, description="Above 1 makes tokens of prompt and answer rarer.")
]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
LogitBias = Annotated[
    dict[TokenId, Bias],
    Meta(max_length=1024, description="Added to the logits of the tokens with these ids."),
]
Seed = Annotated[
    int,
    Meta(ge=-(1 << 63), le=(1 << 63) - 1, description="Makes a sampled answer reproducible."),
]
MaxTokens = Annotated[
    int, Meta(ge=1, le=1 << 31, description="Tokens to generate at most; unset: up to the context.")
]
MinTokens = Annotated[int, Meta(ge=0, le=1 << 31, description="Tokens before the end may come.")]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES, description="Answers for each prompt.")]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Stop = (
    StopString
    | Annotated[list[StopString], Meta(max_length=16, description="Strings that end the answer.")]
)
StopTokenIds = Annotated[
    list[TokenId], Meta(max_length=256, description="Tokens that end the answer.")
]


T = TypeVar("T")


def given(value: T | None, default: T) -> T:
    """The value, or the default where the field was left out or null."""
    return default if value is None else value


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def require_min_below_max(min_tokens: int | None, max_tokens: int | None) -> None:
    if min_tokens is not None and max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequestError(
            f"min_tokens ({min_tokens}) is above max_tokens ({max_tokens}).", param="min_tokens"
        )
