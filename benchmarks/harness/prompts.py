"""Distinct prompts of an exact number of tokens, cut from real text that Python ships.

No prompt shares its beginning with another, so that no prefix cache helps.
"""

from pydoc_data.topics import topics

from tokenizers import Tokenizer

OPENING = 8  # tokens, less than any server's cache block, that no two prompts share
STRIDE = 61  # where the next pass over the text starts; no divisor of a usual prompt's length


class Prompts:
    """Numbered prompts: the same number is the same prompt for every system."""

    def __init__(self, tokenizer: Tokenizer, length: int) -> None:
        text = "\n".join(topics[name] for name in sorted(topics))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        slices = (
            ids[start : start + length]
            for offset in range(0, length, STRIDE)
            for start in range(offset, len(ids) - length, length)
        )
        stable = (part for part in slices if _is_stable(tokenizer, part))
        self._prompts = list({tuple(part[:OPENING]): part for part in stable}.values())

    def __len__(self) -> int:
        return len(self._prompts)

    def take(self, first: int, count: int) -> list[list[int]]:
        """`count` prompts from number `first` on; ValueError when there are not as many."""
        if first + count > len(self._prompts):
            raise ValueError(f"only {len(self)} distinct prompts, {first + count} are needed")
        return self._prompts[first : first + count]


def _is_stable(tokenizer: Tokenizer, ids: list[int]) -> bool:
    """Whether the prompt sent as text is the same tokens, for servers that take only text."""
    text = tokenizer.decode(ids, skip_special_tokens=False)
    return bool(tokenizer.encode(text, add_special_tokens=False).ids == ids)
