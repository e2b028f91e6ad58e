"""The tokens of each choice, out of what an upstream says of all of them together."""

from collections.abc import Sequence

from headrace.generation import GenerationRequest, Usage
from headrace.routing.upstream.wire import UsageBody


def usages(
    request: GenerationRequest, told: UsageBody | None, num_tokens: Sequence[int]
) -> list[Usage | None]:
    """One for each choice, whose tokens as far as the upstream named them are `num_tokens`.

    An upstream tells the sum: where nothing says more, the first choice has it all.
    """
    if told is None:
        return [None] * len(num_tokens)
    if request.answered_text is not None:
        return [_continued(request, told)]
    total = told.completion_tokens
    counts = num_tokens if sum(num_tokens) == total else [total, *[0] * (len(num_tokens) - 1)]
    return [Usage(told.prompt_tokens, count, told.cached_tokens) for count in counts]


def _continued(request: GenerationRequest, told: UsageBody) -> Usage | None:
    """What was answered before came back as prompt, and nobody counts it but who knows its tokens.

    Where the upstream joins text and prompt it may read them as a token more or less.
    """
    answered = request.answered[0] if request.answered else None
    num_before = 0 if answered is None else len(answered.token_ids)
    num_prompt_tokens = told.prompt_tokens - num_before
    if num_before == 0 or num_prompt_tokens < 1:
        return None
    return Usage(
        num_prompt_tokens,
        num_before + told.completion_tokens,
        min(told.cached_tokens, num_prompt_tokens),
    )
