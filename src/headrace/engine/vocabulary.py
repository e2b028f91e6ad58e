"""What the engine needs of a tokenizer. The one that reads model files is in `tokenizer`."""

from collections.abc import Collection, Sequence
from typing import Protocol

from headrace.generation import Prompt


class TextStream(Protocol):
    """Turns one sequence's tokens into text piece by piece, never cutting a character."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str:
        """Whatever is still held back, incomplete characters replaced."""
        ...


class Vocabulary(Protocol):
    """Text to tokens and back. `encode` and `decode` may be called from several threads."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> Collection[int]: ...

    def encode(
        self, prompt: Prompt, *, add_special_tokens: bool = True, max_tokens: int | None = None
    ) -> list[int]:
        """Token ids; what cannot be `max_tokens` or fewer may be refused by its length alone."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int, /) -> bytes: ...

    def detokenizer(
        self, prompt_ids: Sequence[int], /, *, skip_special_tokens: bool
    ) -> TextStream: ...
