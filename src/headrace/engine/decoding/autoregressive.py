"""One token after another: a prediction after a sequence's last token is its next token."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.engine.decoding.decoder import Decoded
from headrace.engine.logprobs import token_logprobs
from headrace.engine.sampler import Sampler
from headrace.engine.scheduler import Step
from headrace.engine.sequence import Sequence
from headrace.executors.executor import Batch, Output
from headrace.generation import TokenLogprob


class AutoregressiveDecoder:
    """Greedy rows take the executor's prediction; others are sampled from its logits."""

    def __init__(
        self, vocab_size: int, block_size: int, token_bytes: Callable[[int], bytes]
    ) -> None:
        self._sampler = Sampler(vocab_size)
        self._block_size = block_size
        self._token_bytes = token_bytes

    def batch(self, step: Step) -> Batch:
        """All in one pass: a model leaves the caches cold, and each pass would fill them anew."""
        size = self._block_size
        token_ids, computed, tables, rows = list[int](), list[int](), list[list[int]](), list[int]()
        want_logits = False
        for seq, count in zip(step.sequences, step.num_new_tokens, strict=True):
            known, table = seq.token_ids, seq.block_table
            start = seq.num_computed_tokens
            end = start + count
            if seq.scores_prompt:
                rows += range(len(token_ids), len(token_ids) + count)
            elif end == len(known):
                rows.append(len(token_ids) + count - 1)
            if count == 1:
                token_ids.append(known[start])
            else:
                token_ids += known[start:end]
            computed.append(start)
            # Tables of prompts in progress reach further than their last new token.
            num_blocks = -(-end // size)
            tables.append(table if len(table) == num_blocks else table[:num_blocks])
            want_logits = want_logits or _needs_logits(seq)
        return Batch(
            token_ids=np.array(token_ids, dtype=np.int32),
            num_new_tokens=np.array(step.num_new_tokens, dtype=np.int32),
            num_computed_tokens=np.array(computed, dtype=np.int32),
            block_tables=tables,
            rows=np.array(rows, dtype=np.int32),
            want_logits=want_logits,
        )

    def num_rows(self, seq: Sequence, num_new_tokens: int) -> int:
        return num_new_tokens if seq.scores_prompt else int(seq.has_caught_up)

    def decode(self, step: Step, output: Output) -> Decoded:
        """Read the output of a batch whose step has been recorded."""
        if output.logits is None:
            return _likeliest(step, output)
        decoded, rows, end = Decoded(), list[int](), 0
        for seq, count in zip(step.sequences, step.num_new_tokens, strict=True):
            start, end = end, end + self.num_rows(seq, count)
            if seq.scores_prompt:
                decoded.prompt_logprobs.append(self._score(seq, count, start, output))
            if seq.has_caught_up:
                decoded.sequences.append(seq)
                rows.append(end - 1)
        decoded.token_ids = output.greedy[rows].tolist()
        decoded.logprobs = [None] * len(rows)
        self._sample(decoded, rows, output.logits)
        return decoded

    def _sample(self, decoded: Decoded, rows: list[int], logits: NDArray[np.float32]) -> None:
        """Replace the likeliest token where the request asks for something else."""
        sampled = [at for at, seq in enumerate(decoded.sequences) if _needs_logits(seq)]
        if not sampled:
            return
        sequences = [decoded.sequences[at] for at in sampled]
        chosen = self._sampler.sample(
            [seq.sampling for seq in sequences],
            [seq.num_output_tokens for seq in sequences],
            _take(logits, [rows[at] for at in sampled]),
        )
        for at, token_id in zip(sampled, chosen, strict=True):
            decoded.token_ids[at] = token_id
        self._add_logprobs(decoded, rows, logits)

    def _add_logprobs(self, decoded: Decoded, rows: list[int], logits: NDArray[np.float32]) -> None:
        wanted = [
            (at, num_top)
            for at, seq in enumerate(decoded.sequences)
            if (num_top := seq.sampling.params.logprobs) is not None
        ]
        if not wanted:
            return
        found = token_logprobs(
            logits[[rows[at] for at, _ in wanted]],
            [decoded.token_ids[at] for at, _ in wanted],
            [num_top for _, num_top in wanted],
            self._token_bytes,
        )
        for (at, _), logprob in zip(wanted, found, strict=True):
            decoded.logprobs[at] = logprob

    def _score(
        self, seq: Sequence, count: int, row: int, output: Output
    ) -> tuple[Sequence, int, list[TokenLogprob]]:
        """How likely the model found the prompt tokens that follow the `count` just computed."""
        position = seq.num_computed_tokens - count + 1
        targets = seq.token_ids[position : position + count]
        num_top = [seq.sampling.params.logprobs or 0] * len(targets)
        assert output.logits is not None
        logits = output.logits[row : row + len(targets)]
        return seq, position, token_logprobs(logits, targets, num_top, self._token_bytes)


def _likeliest(step: Step, output: Output) -> Decoded:
    """Every row is one of a sequence that has caught up and wants no more than this."""
    sequences = [seq for seq in step.sequences if len(seq.token_ids) == seq.num_computed_tokens]
    return Decoded(sequences, output.greedy.tolist(), [None] * len(sequences))


def _needs_logits(seq: Sequence) -> bool:
    """Whether the likeliest token is not enough to choose the next one."""
    sampling = seq.sampling
    return (
        sampling.always_needs_logits
        or seq.scores_prompt
        or (sampling.min_tokens > 0 and seq.num_output_tokens < sampling.min_tokens)
    )


def _take(logits: NDArray[np.float32], rows: list[int]) -> NDArray[np.float32]:
    """The rows, copied only when they are not all of them."""
    return logits if len(rows) == len(logits) else logits[rows]
