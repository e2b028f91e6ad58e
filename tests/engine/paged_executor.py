"""A model whose answer depends on every token in its paged cache, and on nothing else.

Each cache slot holds a token and its position. A prediction reads the whole sequence back through
its block table, so a wrong table, a wrong position or a stale block changes what comes out.
"""

import codecs
from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from headrace.executors.executor import Batch, Output
from headrace.executors.sampling.logprobs import logprobs_of
from headrace.executors.sampling.sampler import Sampler
from headrace.generation import Chat, Prompt

VOCAB_SIZE = 257
EOS = 256
_SPREAD = np.random.default_rng(0).standard_normal((64, VOCAB_SIZE)).astype(np.float32) * 3


class PagedExecutor:
    name = "paged"
    precision = "fp32"
    kv_cache_precision = "fp32"
    vocab_size = VOCAB_SIZE

    def __init__(
        self, num_blocks: int = 64, block_size: int = 4, max_model_len: int = 1000
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.cache = np.full((num_blocks, block_size, 2), -1)
        self.batches: list[Batch] = []
        self.poison: int | None = None  # a token that this model refuses

    def execute(self, batch: Batch) -> Output:
        if self.poison is not None and self.poison in batch.token_ids:
            raise ValueError(f"token {self.poison} does not exist")
        self.batches.append(batch)
        seen = self._write(batch)
        logits = np.stack(
            [self.predict(seen[row]) for row in batch.rows.tolist()] or [self.predict([])]
        )
        logits = logits[: len(batch.rows)]
        sampling = batch.sampling
        if sampling is None:
            return Output(logits.argmax(axis=-1).astype(np.int32))
        token_ids = Sampler(VOCAB_SIZE).sample(sampling, logits)
        return Output(token_ids, logprobs_of(logits, token_ids, sampling.num_top))

    def predict(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        return predict(token_ids)

    def close(self) -> None:
        self.cache[:] = -1

    def _write(self, batch: Batch) -> list[list[int]]:
        """Store the new tokens; return for each of them what its sequence then holds."""
        assert len(batch.token_ids) == batch.num_new_tokens.sum()
        seen, start = [], 0
        for count, computed, table in zip(
            batch.num_new_tokens.tolist(),
            batch.num_computed_tokens.tolist(),
            batch.block_tables,
            strict=True,
        ):
            assert len(table) == -(-(computed + count) // self.block_size)
            for at in range(count):
                position = computed + at
                slot = table[position // self.block_size], position % self.block_size
                self.cache[slot] = batch.token_ids[start + at], position
            start += count
            content = self.cache[list(table)].reshape(-1, 2)[: computed + count]
            assert content[:, 1].tolist() == list(range(computed + count)), "a stale block"
            tokens = content[:, 0].tolist()
            seen += [tokens[: computed + at + 1] for at in range(count)]
        return seen


def predict(token_ids: Sequence[int]) -> NDArray[np.float32]:
    """Logits after these tokens."""
    digest = crc32(np.array(token_ids, dtype=np.int64).tobytes())
    return np.roll(_SPREAD[digest % 64], digest // 64 % VOCAB_SIZE)


def greedy_answer(prompt_ids: Sequence[int], count: int) -> list[int]:
    """What the model says when nothing is between it and its tokens; ends after EOS."""
    tokens = list(prompt_ids)
    for _ in range(count):
        tokens.append(int(predict(tokens).argmax()))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt_ids) :]


class ByteTokenizer:
    """A token is a byte, so that characters are split over tokens; one more ends the answer."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = frozenset([EOS])
    has_chat_template = False

    def encode(self, prompt: Prompt, **_options: object) -> list[int]:
        assert not isinstance(prompt, Chat)
        return list(prompt.encode()) if isinstance(prompt, str) else prompt

    def decode(self, ids: Sequence[int], **_options: bool) -> str:
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == EOS else bytes([token_id])

    def detokenizer(self, _prompt_ids: Sequence[int], **_options: bool) -> "ByteStream":
        return ByteStream()


class ByteStream:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(b"" if token_id == EOS else bytes([token_id]))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
