"""Types and ranges of sampling fields, shared by every route that generates."""

import re
from typing import Annotated, TypeVar

from msgspec import Meta

from headrace.errors import InvalidRequestError

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_BIAS = 100
MAX_TOKEN_ID = (1 << 31) - 1
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
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
LogitBias = Annotated[
    dict[str, float],
    Meta(max_length=1024, description="Token ids, and from -100 to 100 what their logits get."),
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
User = Annotated[
    str,
    Meta(max_length=256, description="Whoever asks: requests of one user can stay together."),
]


T = TypeVar("T")
_DIGITS = re.compile(r"[0-9]{1,10}")


def given(value: T | None, default: T) -> T:
    """The value, or the default where the field was left out or null."""
    return default if value is None else value


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def biases(fields: dict[str, float] | None) -> dict[int, float]:
    """Checked here and not while decoding, so that a complaint can name the key."""
    return {_token_id(key): _bias(key, bias) for key, bias in (fields or {}).items()}


def _token_id(key: str) -> int:
    if not _DIGITS.fullmatch(key) or int(key) > MAX_TOKEN_ID:
        raise _bias_error(key, "a key must be a token id")
    return int(key)


def _bias(key: str, bias: float) -> float:
    if not -MAX_BIAS <= bias <= MAX_BIAS:
        raise _bias_error(key, f"expected a number from -{MAX_BIAS} to {MAX_BIAS}")
    return bias


def _bias_error(key: str, complaint: str) -> InvalidRequestError:
    where = f"logit_bias.{key[:40]}"
    return InvalidRequestError(f"{where}: {complaint}.", param=where)


def require_min_below_max(min_tokens: int | None, max_tokens: int | None) -> None:
    if min_tokens is not None and max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequestError(
            f"min_tokens ({min_tokens}) is above max_tokens ({max_tokens}).", param="min_tokens"
        )
