"""The words side of the house: what a client asks of a language model and what comes back.

Plain immutable data that crosses every floor and the worker channel. Knows nothing of HTTP, tensors
or scheduling.
"""

from collections.abc import AsyncIterator
from typing import Literal, Protocol

import msgspec

FinishReason = Literal["stop", "length"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose tokens. The defaults sample from the unchanged distribution.

    `max_tokens=None` means: up to the model's context. `temperature=0` is greedy. `top_k=0`,
    `top_p=1`, `min_p=0` are off. `logprobs=k` returns the chosen token's log-probability and the k
    likeliest (0: only the chosen one). With `echo` the first chunk carries the prompt.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    logprobs: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    echo: bool = False


class Message(msgspec.Struct, frozen=True):
    """One turn of a chat, its content as plain text."""

    role: str
    content: str
    name: str | None = None


class Chat(msgspec.Struct, frozen=True):
    """A conversation, to be rendered by the model's chat template."""

    messages: tuple[Message, ...]
    add_generation_prompt: bool = True


Prompt = str | list[int] | Chat


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """What the client has of one sequence's answer already: tokens, and characters of their text.

    The text may end within the token that comes next, or before the last one's, as servers hold
    tokens or text back in their own ways. `is_finished` when nothing is missing; the tokens are not
    told then.
    """

    token_ids: list[int]
    num_characters: int
    is_finished: bool = False


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `deadline` is on the machine's monotonic clock, in seconds.

    `cache_salt` keeps tenants apart: equal prompts share cached blocks only under equal salt.
    `user` is whoever asks, as far as the client names one; `trace` holds the headers of W3C's Trace
    Context that it sent.
    `was_accepted` says that another worker had taken the request, and `answered` what it sent: one
    entry a sequence, None where nothing was; empty where nothing was sent, or the tokens of what
    was are not known. Only what comes after that is sent.
    `answered_text` is, with n=1, what the client has of the answer, without an echo. Where it is
    given, a model goes on by it, and `answered` only tells how many tokens it was, if known.
    """

    request_id: str
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    deadline: float | None = None
    cache_salt: str = ""
    user: str | None = None
    trace: dict[str, str] = {}
    was_accepted: bool = False
    answered: tuple[Answered | None, ...] = ()
    answered_text: str | None = None


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One candidate token: its id, its bytes and log-probability (natural logarithm).

    Other servers name a token by its bytes only; its id is None then.
    """

    token_id: int | None
    token: bytes
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token of the answer, with the likeliest alternatives in falling order.

    `logprob` is None only for a prompt's first token, which nothing precedes; `token_id` where
    another server does not tell it.
    """

    token_id: int | None
    token: bytes
    logprob: float | None
    top: list[TopLogprob]


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one sequence; `cached_tokens` of the prompt were found in the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class Timing(msgspec.Struct, frozen=True, array_like=True):
    """Seconds of one sequence's life in the engine, and the largest batch it ran in.

    `queue_time`: arrival of the request to when its first sequence was first scheduled.
    `time_to_first_token`: arrival to first token. `generation_time`: first scheduled to last one.
    Of another server's answer these are from sending the request on, and `queue_time` and
    `batch_size` are None, since it does not tell them.
    """

    queue_time: float | None
    time_to_first_token: float
    generation_time: float
    batch_size: int | None


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """What one step added to one sequence of a request. A full answer is the fold of its chunks.

    `index` numbers the sequences of a request with n > 1. `text` may be empty while a character or
    a possible stop string is incomplete. The last chunk of an index, and only that, has
    `finish_reason`, `usage` and `timing`; `stop_reason` is the stop string or token id that matched
    (None for end of sequence). Another server may tell neither `token_ids`, which are empty then,
    nor `usage`.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    timing: Timing | None = None


class EngineStats(msgspec.Struct, frozen=True, array_like=True):
    """The engine's gauges now, and its counters since it started."""

    num_running: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_prefix_cache_queries: int = 0  # tokens looked up
    num_prefix_cache_hits: int = 0  # tokens found
    num_preemptions: int = 0
    num_aborted: int = 0


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a loaded model says of itself; None is what another server does not tell of its own."""

    model_id: str
    architecture: str
    executor: str
    precision: str | None
    kv_cache_precision: str | None
    max_model_len: int | None
    vocab_size: int | None
    block_size: int | None
    num_blocks: int | None
    has_chat_template: bool
    fingerprint: str


class LanguageModel(Protocol):
    """A model that continues text, wherever it runs.

    Closing the iterator of `generate` aborts the request within one step. Errors are those of
    `headrace.errors`; one raised after the first chunk means that the answer is incomplete.
    """

    @property
    def info(self) -> ModelInfo: ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]: ...

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]: ...

    async def detokenize(self, token_ids: list[int]) -> str: ...
