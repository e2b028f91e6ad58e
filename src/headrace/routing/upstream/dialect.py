"""What each kind of upstream calls the sampling parameters, and which of them it knows.

Common to all is OpenAI's API. A field that is not in a dialect's table cannot be expressed there.
Sources: OpenAI's API reference, vLLM's protocol.py, llama.cpp's server README, our own schema.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from headrace.endpoints import DialectName

Resumes = Literal["tokens", "text", "completions"]
"""What a server can go on with that another began: anything whose tokens are known; chats and
completions by their text; completions only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerRoutes:
    """What the fields of `/tokenize` are called."""

    prompt: str
    add_special_tokens: str
    takes_messages: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of upstream.

    `names`: of our sampling parameters, what goes into a body as it is. `explicit`: those sent
    even when neutral, since the server's own defaults are not. `chat_max_tokens`: what a chat calls
    the limit. `unlimited`: what asks a completion for no limit, None where nothing does.
    `chat_continuation`: what has a chat's last message gone on with, None where nothing does.
    """

    name: DialectName
    names: Mapping[str, str]
    explicit: frozenset[str] = frozenset()
    chat_max_tokens: str = "max_tokens"
    unlimited: Mapping[str, int | None] | None = None
    extra: Mapping[str, int | bool] = field(default_factory=dict)
    takes_answered_tokens: bool = False
    chat_continuation: Mapping[str, bool] | None = None
    min_logprobs: int = 0
    biases_as_pairs: bool = False
    takes_generation_prompt: bool = False
    takes_cache_salt: bool = False
    seeds: range | None = None
    tokenizer: TokenizerRoutes | None = None

    @property
    def resumes(self) -> Resumes:
        if self.takes_answered_tokens:
            return "tokens"
        return "completions" if self.chat_continuation is None else "text"


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_COMMON = _same(
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "n", "stop"
)
_EXTENDED = _COMMON | _same(
    "echo",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
)
_LLAMA_CPP = (
    _COMMON | _same("top_k", "min_p", "ignore_eos") | {"repetition_penalty": "repeat_penalty"}
)
_TOKENIZER = TokenizerRoutes(
    prompt="prompt", add_special_tokens="add_special_tokens", takes_messages=True
)
_SAMPLERS = frozenset({"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})

DIALECTS: Mapping[DialectName, Dialect] = {
    "openai": Dialect(
        name="openai",
        names=_COMMON | _same("echo"),
        chat_max_tokens="max_completion_tokens",  # newer models take no other
    ),
    "compatible": Dialect(
        name="compatible",
        names=_COMMON | _same("echo"),
        explicit=frozenset({"temperature", "top_p"}),
    ),
    "vllm": Dialect(
        name="vllm",
        names=_EXTENDED,
        explicit=_SAMPLERS,  # else a model's generation_config.json decides
        unlimited={"max_tokens": None},
        extra={"return_token_ids": True},
        chat_continuation={"continue_final_message": True, "add_generation_prompt": False},
        takes_generation_prompt=True,
        takes_cache_salt=True,
        tokenizer=_TOKENIZER,
    ),
    "llama.cpp": Dialect(
        name="llama.cpp",
        names=_LLAMA_CPP,
        explicit=_SAMPLERS | {"presence_penalty", "frequency_penalty"},
        unlimited={"max_tokens": -1},
        extra={"repeat_last_n": -1},  # penalties for the whole text, not its last 64 tokens
        min_logprobs=1,  # 0 would be none at all
        biases_as_pairs=True,
        chat_continuation={},  # as it does with any chat that ends with the assistant
        takes_generation_prompt=True,
        seeds=range((1 << 32) - 1),  # the last one means: a random one
        tokenizer=TokenizerRoutes(
            prompt="content", add_special_tokens="add_special", takes_messages=False
        ),
    ),
    "headrace": Dialect(
        name="headrace",
        names=_EXTENDED,
        extra={"return_token_ids": True},
        takes_answered_tokens=True,
        takes_generation_prompt=True,
        tokenizer=_TOKENIZER,
    ),
}

# It speaks as we do, but who answers behind it may know neither tokens nor how to go on.
_GATEWAY = replace(DIALECTS["headrace"], extra={}, takes_answered_tokens=False)

_OWNERS: Mapping[str, Dialect] = {
    "headrace": DIALECTS["headrace"],
    "headrace-gateway": _GATEWAY,
    "vllm": DIALECTS["vllm"],
    "llamacpp": DIALECTS["llama.cpp"],
    "openai": DIALECTS["openai"],
    "openai-internal": DIALECTS["openai"],
    "system": DIALECTS["openai"],
}


def dialect_of_owner(owned_by: str) -> Dialect:
    """The dialect of a server whose models say that they are owned by this."""
    return _OWNERS.get(owned_by, DIALECTS["compatible"])
