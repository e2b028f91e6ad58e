"""Rebuilds a tokenizer from the vocabulary inside a GGUF file.

Two kinds: "gpt2", byte-level BPE with one of several pre-tokenizers, and "llama", a SentencePiece
BPE whose merges follow from its scores. The pre-tokenizers are those of llama-vocab.cpp in
llama.cpp.
"""

from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from headrace.errors import ModelFileError
from headrace.modelfiles.fields import Fields
from headrace.modelfiles.gguf import GGUFFile

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # of tokenizer.ggml.token_type
# Names under which models end a turn, whatever their metadata calls the end of a sequence.
_END_NAMES = frozenset(
    ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
     "<|eom_id|>", "<EOT>"]
)  # fmt: skip

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Digits(individual_digits=True)


_PRE_TOKENIZERS: dict[str, Callable[[], list[pre_tokenizers.PreTokenizer]]] = {
    "gpt-2": lambda: [_split(_GPT2)],
    "smollm": lambda: [_digits(), _split(_GPT2)],
    "starcoder": lambda: [_digits(), _split(_GPT2)],
    "llama-bpe": lambda: [_split(_LLAMA3)],
    "llama3": lambda: [_split(_LLAMA3)],
    "llama-v3": lambda: [_split(_LLAMA3)],
    "qwen2": lambda: [_split(_QWEN2)],
    "deepseek-r1-qwen": lambda: [_split(_QWEN2)],
    "tekken": lambda: [_split(_TEKKEN)],
    "default": lambda: [
        _split(r"[\p{P}\$\+<=>\^~\|]+"),
        _split(_GPT2),
        _split(r"\p{N}+"),
        _split(r"[0-9][0-9][0-9]"),
    ],
}
_IGNORE_MERGES = ("llama-bpe", "llama3", "llama-v3", "tekken")
_NORMALIZED = ("qwen2", "deepseek-r1-qwen")


class GGUFVocabulary:
    """The tokenizer's part of a file's metadata, checked."""

    def __init__(self, file: GGUFFile) -> None:
        self._fields = Fields(str(file.path), file.metadata, prefix="tokenizer.ggml.")
        self.tokens: list[str] = self._strings("tokens")
        self.kinds = self._numbers("token_type")
        template = file.metadata.get("tokenizer.chat_template")
        self.chat_template = template if isinstance(template, str) else None

    @property
    def bos_token(self) -> str | None:
        return self._token("bos_token_id")

    @property
    def eos_token(self) -> str | None:
        return self._token("eos_token_id")

    @property
    def _space_prefix(self) -> bool:
        return self._fields.flag("add_space_prefix", default=True)

    @property
    def add_bos_token(self) -> bool:
        spm = self._fields.get("model") == "llama"
        return self._fields.flag("add_bos_token", default=spm) and self.bos_token is not None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """What the metadata calls the end, and control tokens known to end a turn."""
        keys = ("eos_token_id", "eot_token_id", "eom_token_id")
        declared = {self._id(key) for key in keys} - {None}
        special = np.flatnonzero((self.kinds == _CONTROL) | (self.kinds == _USER_DEFINED))
        named = {int(i) for i in special if self.tokens[i] in _END_NAMES}
        return tuple(sorted(named | {i for i in declared if i is not None}))

    def build(self) -> Tokenizer:
        """The tokenizer, with its special tokens and the BOS rule."""
        kind = self._fields.text("model")
        if kind not in _KINDS:
            raise self._fields.error("model", kind, f"one of {', '.join(_KINDS)}")
        try:
            tokenizer = _KINDS[kind](self)
        except ModelFileError:
            raise
        except Exception as error:  # noqa: BLE001  # the library raises bare Exception
            raise self._fields.error("tokens", str(error), "a sound vocabulary") from None
        self._add_tokens(tokenizer)
        bos = self.bos_token
        if self.add_bos_token and bos is not None:
            tokenizer.post_processor = TemplateProcessing(
                single=[bos, "$A"],
                pair=[bos, "$A", bos, "$B"],
                special_tokens=[(bos, self._fields.integer("bos_token_id", least=0))],
            )
        return tokenizer

    def byte_level(self) -> Tokenizer:
        pre = self._fields.text("pre", "default")
        if pre not in _PRE_TOKENIZERS:
            raise self._fields.error("pre", pre, f"one of {', '.join(_PRE_TOKENIZERS)}")
        model = models.BPE(self._vocabulary(), self._merges(), ignore_merges=pre in _IGNORE_MERGES)
        tokenizer = Tokenizer(model)
        if pre in _NORMALIZED:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *_PRE_TOKENIZERS[pre](),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def sentencepiece(self) -> Tokenizer:
        scores = self._numbers("scores")
        unknown = np.flatnonzero(self.kinds == _UNKNOWN)
        model = models.BPE(
            self._vocabulary(),
            merges_of_scores(self.tokens, scores, self.kinds),
            unk_token=self.tokens[unknown[0]] if len(unknown) else self._token("unknown_token_id"),
            fuse_unk=True,
            byte_fallback=True,
        )
        tokenizer = Tokenizer(model)
        prefix = self._space_prefix
        replace = [normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), *replace] if prefix else replace
        )
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                *([decoders.Strip(" ", 1, 0)] if prefix else []),
            ]
        )
        return tokenizer

    def _add_tokens(self, tokenizer: Tokenizer) -> None:
        control = np.flatnonzero(np.isin(self.kinds, [_CONTROL, _UNKNOWN]))
        tokenizer.add_special_tokens(
            [AddedToken(self.tokens[i], special=True, normalized=False) for i in control]
        )
        user_defined = np.flatnonzero(self.kinds == _USER_DEFINED)
        # SentencePiece looks for runs of spaces after it has written every space as "▁".
        spaces = self._fields.get("model") == "llama" and not self._space_prefix
        tokenizer.add_tokens(
            [
                AddedToken(token, special=False, normalized=spaces and " " in token)
                for token in (self.tokens[i] for i in user_defined)
            ]
        )

    def _vocabulary(self) -> dict[str, int]:
        vocabulary = {token: index for index, token in enumerate(self.tokens)}
        if len(vocabulary) != len(self.tokens):
            raise self._fields.error("tokens", "a list with a token twice", "distinct tokens")
        return vocabulary

    def _merges(self) -> list[tuple[str, str]]:
        pairs = [tuple(merge.split(" ")) for merge in self._strings("merges")]
        if any(len(pair) != 2 for pair in pairs):  # noqa: PLR2004  # a pair is two
            raise self._fields.error("merges", "a list with another form", "pairs 'left right'")
        return pairs  # type: ignore[return-value]  # checked above

    def _strings(self, key: str) -> list[str]:
        value = self._fields.get(key)
        if not isinstance(value, list) or not value:
            raise self._fields.error(key, value, "a list of texts")
        return value

    def _numbers(self, key: str) -> np.ndarray:
        value = self._fields.get(key)
        if not isinstance(value, np.ndarray) or len(value) != len(self.tokens):
            raise self._fields.error(key, value, f"{len(self.tokens)} numbers, one a token")
        return value

    def _id(self, key: str) -> int | None:
        if self._fields.get(key) is None:
            return None
        index = self._fields.integer(key, least=0)
        if index >= len(self.tokens):
            raise self._fields.error(key, index, f"below {len(self.tokens)}")
        return index

    def _token(self, key: str) -> str | None:
        index = self._id(key)
        return None if index is None else self.tokens[index]


def merges_of_scores(
    tokens: Sequence[str], scores: np.ndarray, kinds: np.ndarray
) -> list[tuple[str, str]]:
    """Every way to join two tokens into a third, the best-scored result first."""
    joinable = (kinds == _NORMAL) | (kinds == _USER_DEFINED)
    normal = {tokens[i] for i in np.flatnonzero(joinable).tolist()}
    merges: list[tuple[str, str]] = []
    for index in np.argsort(-scores, kind="stable").tolist():
        token = tokens[index]
        if token in normal:
            merges.extend(
                (token[:cut], token[cut:])
                for cut in range(1, len(token))
                if token[:cut] in normal and token[cut:] in normal
            )
    return merges


_KINDS: dict[str, Callable[[GGUFVocabulary], Tokenizer]] = {
    "gpt2": GGUFVocabulary.byte_level,
    "llama": GGUFVocabulary.sentencepiece,
}
