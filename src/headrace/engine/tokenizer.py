"""Prompts to token ids and back. Owns the chat template and the rule that user text stays text."""

import re
from collections.abc import Sequence
from functools import cached_property

import tokenizers

from headrace.engine.chat_template import ChatTemplate
from headrace.engine.detokenizer import Detokenizer, TokenBytes
from headrace.errors import ContextLengthError, InvalidRequestError
from headrace.generation import Chat, Prompt
from headrace.modelfiles.model import ModelFiles

_FIRST_PRIVATE = 0xF0000  # characters that Unicode gives no meaning


class Tokenizer:
    """One model's tokenizer, safe to use from several threads."""

    def __init__(self, files: ModelFiles) -> None:
        self._tokenizer = files.tokenizer
        self._special = {
            token.content: token_id
            for token_id, token in files.tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        self._special_ids = frozenset(self._special.values())
        self._bytes = TokenBytes(files.tokenizer, str(files.path))
        self._template = _template(files)
        self.vocab_size = files.config.vocab_size
        self.eos_token_ids = frozenset(files.config.eos_token_ids)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(
        self, prompt: Prompt, *, add_special_tokens: bool = True, max_tokens: int | None = None
    ) -> list[int]:
        """Token ids of a prompt; one too long for `max_tokens` of any kind is refused unread.

        A text is the caller's whole prompt: its control tokens count, as in transformers. In a chat
        the template alone writes control tokens; in a message they are text.
        """
        if isinstance(prompt, Chat):
            num_characters = sum(len(message.content) for message in prompt.messages)
            self._check_length(num_characters, max_tokens, "messages")
            return self._encode_chat(prompt)
        if isinstance(prompt, str):
            self._check_length(len(prompt), max_tokens, "prompt")
            return _encode(self._tokenizer, prompt, add_special_tokens=add_special_tokens)
        return self._checked(prompt)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        # Alone of its kind, `decode_batch` lets other threads run meanwhile.
        texts: list[str] = self._tokenizer.decode_batch(
            [self._checked(ids)], skip_special_tokens=skip_special_tokens
        )
        return texts[0]

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id]

    def detokenizer(self, prompt_ids: Sequence[int], *, skip_special_tokens: bool) -> Detokenizer:
        """Incremental text of what follows the prompt."""
        hidden = self._special_ids if skip_special_tokens else frozenset[int]()
        return Detokenizer(self._bytes, hidden, at_start=not prompt_ids)

    def _check_length(self, num_characters: int, max_tokens: int | None, param: str) -> None:
        if max_tokens is None or num_characters <= max_tokens:
            return
        if num_characters > (limit := max_tokens * self._max_token_length):
            raise ContextLengthError(
                f"the text has {num_characters} characters, and {max_tokens} tokens "
                f"can hold at most {limit}",
                param=param,
            )

    def _encode_chat(self, chat: Chat) -> list[int]:
        if self._template is None:
            raise InvalidRequestError(
                "this model has no chat template; send a prompt to the completions API",
                param="messages",
            )
        fence = _Fence(self._special, self._special_pattern, self._unused_character(chat))
        rendered = self._template.render(chat, fence.close)
        if not fence.used:
            return _encode(self._tokenizer, rendered, param="messages")
        return self._encode_fenced(rendered, fence)

    def _encode_fenced(self, rendered: str, fence: "_Fence") -> list[int]:
        """The template's control tokens by their ids, everything between them as plain text."""
        ids: list[int] = []
        for piece in self._special_pattern.split(rendered):
            if piece in self._special:
                ids.append(self._special[piece])
            elif piece:
                ids.extend(_encode(self._plain, fence.open(piece), param="messages"))
        return ids

    def _checked(self, ids: Sequence[int]) -> list[int]:
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise InvalidRequestError(
                    f"token id {token_id} is not in the vocabulary of {self.vocab_size}",
                    param="prompt",
                )
        return list(ids)

    def _unused_character(self, chat: Chat) -> str:
        """A character that neither the template nor any message contains."""
        assert self._template is not None
        used = set(self._template.source)
        for message in chat.messages:
            used.update(message.role, message.content, message.name or "")
        for character in map(chr, range(_FIRST_PRIVATE, 0x110000)):
            if character not in used:
                return character
        raise InvalidRequestError("the messages use every private character", param="messages")

    @cached_property
    def _max_token_length(self) -> int:
        """Characters of the longest token, as written in the vocabulary: at least its text's."""
        return max(map(len, self._tokenizer.get_vocab()))

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        """Matches any control token, the longest first; never, when there is none."""
        longest_first = sorted(self._special, key=len, reverse=True)
        return re.compile("(" + ("|".join(map(re.escape, longest_first)) or r"(?!)") + ")")

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """A twin that reads control tokens as text."""
        known = self._tokenizer.get_added_tokens_decoder().values()
        plain = tokenizers.Tokenizer(self._tokenizer.model)  # shares the vocabulary
        if self._tokenizer.normalizer is not None:
            plain.normalizer = self._tokenizer.normalizer
        if self._tokenizer.pre_tokenizer is not None:
            plain.pre_tokenizer = self._tokenizer.pre_tokenizer
        plain.add_tokens([token for token in known if not token.special])
        return plain


class _Fence:
    """Keeps control tokens in user text apart from the template's own while it is rendered.

    Each is replaced by a number between marks, which a template passes on untouched. Text without
    control tokens is not altered at all, so that it gives the ids that any other renderer gives.
    """

    def __init__(self, special: dict[str, int], pattern: re.Pattern[str], mark: str) -> None:
        self._tokens = list(special)
        self._numbers = {token: number for number, token in enumerate(special)}
        self._pattern = pattern
        self._mark = mark
        self.used = False

    def close(self, text: str) -> str:
        return self._pattern.sub(self._number, text)

    def open(self, text: str) -> str:
        numbered = re.compile(f"{self._mark}(\\d+){self._mark}")
        return numbered.sub(lambda match: self._tokens[int(match[1])], text)

    def _number(self, match: re.Match[str]) -> str:
        self.used = True
        return f"{self._mark}{self._numbers[match[0]]}{self._mark}"


def _encode(
    tokenizer: tokenizers.Tokenizer,
    text: str,
    *,
    add_special_tokens: bool = False,
    param: str = "prompt",
) -> list[int]:
    try:
        # `encode` would keep every other thread from running, for seconds on a long text.
        [encoding] = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    except TypeError:  # how the library says that a str is no Unicode text
        raise InvalidRequestError("the text holds half a surrogate pair", param=param) from None
    ids: list[int] = encoding.ids
    return ids


def _template(files: ModelFiles) -> ChatTemplate | None:
    if files.chat_template is None:
        return None
    named = {"bos_token": files.bos_token, "eos_token": files.eos_token}
    variables = {name: token for name, token in named.items() if token is not None}
    return ChatTemplate(files.chat_template, str(files.path), variables)
