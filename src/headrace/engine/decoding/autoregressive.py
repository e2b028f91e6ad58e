"""One token after another: a prediction after a sequence's last token is its next token."""

from collections.abc import Callable

import numpy as np

from headrace.engine.decoding.decoder import Decoded
from headrace.engine.sampling_state import SamplingState, sampling
from headrace.engine.scheduler import Step
from headrace.engine.sequence import Sequence
from headrace.executors.executor import Batch, Logprobs, Output, Sampling
from headrace.generation import TokenLogprob, TopLogprob


class AutoregressiveDecoder:
    """The executor chooses every token; a step of greedy rows alone asks for nothing more."""

    def __init__(
        self, vocab_size: int, block_size: int, token_bytes: Callable[[int], bytes]
    ) -> None:
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._token_bytes = token_bytes

    def batch(self, step: Step) -> Batch:
        """All in one pass: a model leaves the caches cold, and each pass would fill them anew."""
        size = self._block_size
        token_ids, computed, tables, rows = list[int](), list[int](), list[list[int]](), list[int]()
        sampled = False
        for seq, count in zip(step.sequences, step.num_new_tokens, strict=True):
            known, table = seq.token_ids, seq.block_table
            start = seq.num_computed_tokens
            end = start + count
            if seq.scores_prompt:
                rows += range(len(token_ids), len(token_ids) + count)
                sampled = True
            elif end == len(known):
                rows.append(len(token_ids) + count - 1)
                sampled = sampled or seq.sampling.is_sampled(end - seq.num_prompt_tokens)
            if count == 1:
                token_ids.append(known[start])
            else:
                token_ids += known[start:end]
            computed.append(start)
            # Tables of prompts in progress reach further than their last new token.
            num_blocks = -(-end // size)
            tables.append(table if len(table) == num_blocks else table[:num_blocks])
        return Batch(
            token_ids=np.array(token_ids, dtype=np.int32),
            num_new_tokens=np.array(step.num_new_tokens, dtype=np.int32),
            num_computed_tokens=np.array(computed, dtype=np.int32),
            block_tables=tables,
            rows=np.array(rows, dtype=np.int32),
            sampling=self._sampling(step) if sampled else None,
        )

    def num_rows(self, seq: Sequence, num_new_tokens: int) -> int:
        return num_new_tokens if seq.scores_prompt else int(seq.has_caught_up)

    def decode(self, step: Step, output: Output) -> Decoded:
        """Read the output of a batch whose step has been recorded."""
        if output.logprobs is None:
            caught_up = [
                seq for seq in step.sequences if len(seq.token_ids) == seq.num_computed_tokens
            ]
            return Decoded(caught_up, output.token_ids.tolist(), [None] * len(caught_up))
        decoded, end = Decoded(), 0
        found, token_ids = _Rows(output.logprobs, self._token_bytes), output.token_ids.tolist()
        for seq, count in zip(step.sequences, step.num_new_tokens, strict=True):
            start, end = end, end + self.num_rows(seq, count)
            num_top = seq.sampling.params.logprobs
            if seq.scores_prompt:
                position = seq.num_computed_tokens - count + 1
                scored = range(start, start + min(count, len(seq.token_ids) - position))
                scores = [found.of(row, token_ids[row], num_top or 0) for row in scored]
                decoded.prompt_logprobs.append((seq, position, scores))
            if seq.has_caught_up:
                token_id = token_ids[end - 1]
                logprob = None if num_top is None else found.of(end - 1, token_id, num_top)
                decoded.sequences.append(seq)
                decoded.token_ids.append(token_id)
                decoded.logprobs.append(logprob)
        return decoded

    def _sampling(self, step: Step) -> Sampling:
        """What is wanted of the batch's rows: a token, or how likely the prompt's next one was."""
        states, positions, targets = list[SamplingState](), list[int](), list[int]()
        for seq, count in zip(step.sequences, step.num_new_tokens, strict=True):
            end = seq.num_computed_tokens + count
            if seq.scores_prompt:
                following = seq.token_ids[end - count + 1 : end + 1]
                targets += following
                targets += [-1] * (count - len(following))
                states += [seq.sampling] * count
                positions += [seq.num_output_tokens] * count
            elif end == len(seq.token_ids):
                targets.append(-1)
                states.append(seq.sampling)
                positions.append(seq.num_output_tokens)
        return sampling(states, positions, targets, self._vocab_size)


class _Rows:
    """A step's log-probabilities, as plain numbers."""

    def __init__(self, logprobs: Logprobs, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._chosen = logprobs.chosen.tolist()
        self._top_ids = logprobs.top_ids.tolist()
        self._top = logprobs.top.tolist()

    def of(self, row: int, token_id: int, num_top: int) -> TokenLogprob:
        top = list(zip(self._top_ids[row], self._top[row], strict=True))[:num_top]
        return TokenLogprob(
            token_id,
            self._token_bytes(token_id),
            self._chosen[row],
            [
                TopLogprob(top_id, self._token_bytes(top_id), logprob)
                for top_id, logprob in top
                if top_id >= 0
            ],
        )
