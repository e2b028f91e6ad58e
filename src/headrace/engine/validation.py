"""Whether a request can be served at all, said before it is queued."""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.engine.config import EngineConfig
from headrace.errors import ContextLengthError, InvalidRequestError
from headrace.generation import GenerationRequest, SamplingParams

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_LOGIT_BIAS = 1e6  # over any logit; float32 adds it without overflow


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What a model and its engine can take. `max_model_len` fits the KV cache."""

    max_model_len: int
    vocab_size: int
    config: EngineConfig

    def check(self, request: GenerationRequest, prompt_ids: list[int]) -> int:
        """Return how many tokens the answer may have, or raise naming the field at fault."""
        params = request.sampling
        self.check_sampling(params)
        self._check_prompt(prompt_ids, params)
        num_answered = sum(len(each.token_ids) for each in request.answered if each is not None)
        if params.n * len(prompt_ids) + num_answered > self.config.max_queued_tokens:
            raise InvalidRequestError(
                f"n={params.n} times a prompt of {len(prompt_ids)} tokens, and {num_answered} of "
                f"answers, are more than the {self.config.max_queued_tokens} tokens that may wait",
                param="n",
            )
        max_tokens = self._max_tokens(len(prompt_ids), params)
        self._check_answered(request, max_tokens)
        return max_tokens

    def check_sampling(self, params: SamplingParams) -> None:
        """Check what does not depend on the prompt."""
        for name, (low, high) in _RANGES.items():
            value = getattr(params, name)
            if not low <= value <= high:
                raise InvalidRequestError(f"{name} must be {_span(low, high)}", param=name)
        if params.top_p <= 0:
            raise InvalidRequestError("top_p must be over 0", param="top_p")
        if not 1 <= params.n <= self.config.max_n:
            raise InvalidRequestError(f"n must be from 1 to {self.config.max_n}", param="n")
        if params.logprobs is not None and not 0 <= params.logprobs <= MAX_LOGPROBS:
            raise InvalidRequestError(
                f"logprobs must be from 0 to {MAX_LOGPROBS}", param="logprobs"
            )
        if params.max_tokens is not None and params.max_tokens < (0 if params.echo else 1):
            raise InvalidRequestError(
                "max_tokens must be at least 1, or 0 with echo", param="max_tokens"
            )
        self._check_stops(params)
        self._check_ids(params.logit_bias, "logit_bias")
        if not all(abs(bias) <= MAX_LOGIT_BIAS for bias in params.logit_bias.values()):
            raise InvalidRequestError(
                f"logit_bias values must be from -{MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}",
                param="logit_bias",
            )

    def _check_answered(self, request: GenerationRequest, max_tokens: int) -> None:
        """An answer begun elsewhere is shorter than `max_tokens`, which fits the context."""
        if request.answered_text is not None:
            raise _wrong_answered("this model goes on with an answer by its tokens, not its text")
        if not request.answered:
            return
        if len(request.answered) != request.sampling.n:
            raise _wrong_answered(f"expected {request.sampling.n} entries, one a choice")
        known = [each for each in request.answered if each is not None]
        if len(known) == len(request.answered) and all(each.is_finished for each in known):
            raise _wrong_answered("every choice is finished")
        for each in known:
            self._check_ids(each.token_ids, "answered")
            if each.num_characters < 0:
                raise _wrong_answered("num_characters must be at least 0")
            if each.token_ids and max_tokens <= len(each.token_ids):
                raise _wrong_answered(
                    f"{len(each.token_ids)} tokens leave nothing of max_tokens={max_tokens}"
                )

    def _check_stops(self, params: SamplingParams) -> None:
        if not all(params.stop):
            raise InvalidRequestError("a stop string must not be empty", param="stop")
        if len(params.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(
                f"at most {MAX_STOP_STRINGS} stop strings are allowed", param="stop"
            )
        self._check_ids(params.stop_token_ids, "stop_token_ids")

    def _check_ids(self, ids: Iterable[int], param: str) -> None:
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise InvalidRequestError(
                    f"token id {token_id} is not in the vocabulary of {self.vocab_size}",
                    param=param,
                )

    def _check_prompt(self, prompt_ids: list[int], params: SamplingParams) -> None:
        if not prompt_ids:
            raise InvalidRequestError("the prompt has no tokens", param="prompt")
        if min(prompt_ids) < 0 or max(prompt_ids) >= self.vocab_size:
            self._check_ids(prompt_ids, "prompt")
        room = 0 if params.max_tokens == 0 else 1
        if len(prompt_ids) + room > self.max_model_len:
            raise ContextLengthError(
                f"the prompt has {len(prompt_ids)} tokens, and the context of "
                f"{self.max_model_len} must hold it and its answer",
                param="prompt",
            )

    def _max_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        room = self.max_model_len - num_prompt_tokens
        max_tokens = room if params.max_tokens is None else params.max_tokens
        if max_tokens > room:
            raise ContextLengthError(
                f"the prompt's {num_prompt_tokens} tokens and max_tokens={max_tokens} are more "
                f"than the context of {self.max_model_len}",
                param="max_tokens",
            )
        if params.min_tokens > max_tokens:
            raise InvalidRequestError(
                f"min_tokens must be at most max_tokens, {max_tokens}", param="min_tokens"
            )
        return max_tokens


_ANY = float(2**31)  # rejects infinity and NaN, and what float32 would overflow on
_RANGES: dict[str, tuple[float, float]] = {
    "min_tokens": (0, _ANY),
    "temperature": (0, _ANY),
    "top_p": (0, 1),
    "top_k": (0, _ANY),
    "min_p": (0, 1),
    "presence_penalty": (-_ANY, _ANY),
    "frequency_penalty": (-_ANY, _ANY),
    "repetition_penalty": (0.01, _ANY),
}


def _wrong_answered(complaint: str) -> InvalidRequestError:
    return InvalidRequestError(f"answered: {complaint}", param="answered")


def _span(low: float, high: float) -> str:
    if high < _ANY:
        return f"from {low:g} to {high:g}"
    return "at least 0" if low == 0 else "finite"
