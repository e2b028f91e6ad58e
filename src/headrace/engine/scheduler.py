"""Decides which tokens run next. Knows nothing of tensors, text or time.

There is no prefill phase and no decode phase: a sequence has tokens, some of them are computed, and
each step lets it catch up as far as the token budget allows. (The idea is vLLM's, v1/core/sched.)
"""

from bisect import insort
from dataclasses import dataclass, field

from headrace.engine.block_pool import BlockPool, Digest, chain_digest
from headrace.engine.config import EngineConfig
from headrace.engine.sequence import Sequence, Status

# A prompt may be overtaken while the engine computes this many times its length, not longer.
PATIENCE = 8
# Scored prompts ask for logits after every token; more at a time would need too much memory.
MAX_SCORED_TOKENS = 64


@dataclass(slots=True)
class Step:
    """What one forward computes: how many new tokens of which sequences, and who is new."""

    sequences: list[Sequence] = field(default_factory=list)
    num_new_tokens: list[int] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)

    def add(self, seq: Sequence, count: int) -> None:
        self.sequences.append(seq)
        self.num_new_tokens.append(count)


class Scheduler:
    """Holds waiting sequences by urgency and running ones by age."""

    def __init__(self, pool: BlockPool, config: EngineConfig) -> None:
        self.pool = pool
        self.waiting: list[Sequence] = []  # most urgent first
        self.running: list[Sequence] = []  # oldest first
        self.num_waiting_tokens = 0
        self.num_preemptions = 0
        self.num_prefix_cache_queries = 0
        self.num_prefix_cache_hits = 0
        self._max_num_seqs = config.max_num_seqs
        self._budget = config.max_num_batched_tokens
        self._prompt_share = config.max_prompt_share
        self._prefix_caching = config.prefix_caching
        self._watermark = max(1, pool.num_blocks // 100)
        self._num_arrivals = 0
        self._num_computed_tokens = 0  # the clock that waiting sequences age by
        self._turn = 0
        self._is_prompts_turn = False

    def add(self, seq: Sequence, *, like: Sequence | None = None) -> None:
        """Queue a sequence, as urgent as `like` if given, else by its arrival and length."""
        self._num_arrivals += 1
        seq.arrival = self._num_arrivals
        seq.urgency = self._num_computed_tokens + PATIENCE * seq.num_tokens
        if like is not None:
            seq.urgency = like.urgency
        self._wait(seq)

    def schedule(self) -> Step:
        """Choose the next step's tokens and give their sequences the blocks they need."""
        preempted = self._make_room()
        step = Step()
        catching_up = self._continue_running(step)
        if catching_up or (self.waiting and not preempted):
            self._catch_up(step, catching_up, admit=not preempted)
        return step

    def update(self, step: Step) -> None:
        """Record that the step was computed."""
        size = self.pool.block_size
        for seq, count in zip(step.sequences, step.num_new_tokens, strict=True):
            seq.num_computed_tokens += count
            if seq.num_computed_tokens >= (seq.num_shareable_blocks + 1) * size:
                self._share_full_blocks(seq)
        self._num_computed_tokens += sum(step.num_new_tokens)

    def finish(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its blocks."""
        if seq.status is Status.RUNNING:
            self.running.remove(seq)
            self._release(seq)
        elif seq.status is Status.WAITING:
            self.waiting.remove(seq)
            self.num_waiting_tokens -= seq.num_tokens
        seq.status = Status.FINISHED

    def check(self) -> None:
        """Prove that tables, counts and the pool agree."""
        self.pool.check()
        held = {block for seq in self.running for block in seq.block_table}
        assert len(held) == self.pool.num_blocks - self.pool.num_free
        for seq in self.running:
            assert seq.status is Status.RUNNING
            assert len(set(seq.block_table)) == len(seq.block_table)
            assert seq.num_computed_tokens <= len(seq.block_table) * self.pool.block_size
        assert all(not seq.block_table for seq in self.waiting)
        assert self.num_waiting_tokens == sum(seq.num_tokens for seq in self.waiting)
        assert len(self.running) <= self._max_num_seqs

    def _make_room(self) -> bool:
        """Give each running sequence the blocks of its tokens, at the cost of the youngest."""
        size, preempted = self.pool.block_size, False
        for seq in self.running.copy():
            while len(seq.token_ids) > len(seq.block_table) * size:
                if seq.status is not Status.RUNNING:
                    return preempted  # it was the youngest left, and there is none after it
                if self.pool.num_free:
                    seq.block_table += self.pool.allocate(1)
                else:
                    self._preempt(self.running[-1])
                    preempted = True
        return preempted

    def _continue_running(self, step: Step) -> list[Sequence]:
        """Schedule those one token behind; return the others, which have more to catch up."""
        catching_up, behind_by_one = [], []
        for seq in self.running:
            if len(seq.token_ids) - seq.num_computed_tokens == 1:
                behind_by_one.append(seq)
            else:
                catching_up.append(seq)
        limit = self._budget
        if catching_up or self.waiting:
            limit = self._room_beside_prompts()
        if len(behind_by_one) > limit:
            behind_by_one = self._take_turns(behind_by_one, limit)
        step.sequences = behind_by_one
        step.num_new_tokens = [1] * len(behind_by_one)
        return catching_up

    def _room_beside_prompts(self) -> int:
        """Leave prompts a quarter of the budget, at least a token; one alone goes in turns."""
        if self._budget > 1:
            return self._budget - max(1, self._budget // 4)
        self._is_prompts_turn = not self._is_prompts_turn
        return 0 if self._is_prompts_turn else 1

    def _take_turns(self, sequences: list[Sequence], limit: int) -> list[Sequence]:
        start = self._turn % len(sequences)
        self._turn = start + limit
        return (sequences[start:] + sequences[:start])[:limit]

    def _catch_up(self, step: Step, catching_up: list[Sequence], *, admit: bool) -> None:
        """Share what is left of the budget among prompts, the most urgent first.

        While others decode, only a share of the step goes to prompts. No prompt takes more than
        half at first, so that one behind a long one advances too; then the rest is given out.
        """
        budget = self._budget - len(step.sequences)
        if step.sequences:
            budget = min(budget, max(1, int(self._budget * self._prompt_share)))
        waiting_may_start = admit
        num_scored_left = MAX_SCORED_TOKENS
        portions: dict[Sequence, int] = {}
        catching_up.sort(key=_urgency)
        half = max(1, budget // 2)
        while budget > 0:
            if waiting_may_start and self._is_waiting_more_urgent(catching_up):
                seq = self.waiting[0]
                if not (waiting_may_start := self._admit(seq, step)):
                    continue
            elif catching_up:
                seq = catching_up.pop(0)
            else:
                break
            wanted = seq.num_pending_tokens
            if seq.scores_prompt:
                wanted = min(wanted, half, budget, num_scored_left)
                num_scored_left -= wanted
            portions[seq] = min(wanted, half, budget)
            budget -= portions[seq]
        for seq, portion in portions.items():
            extra = 0 if seq.scores_prompt else min(seq.num_pending_tokens - portion, budget)
            budget -= extra
            if portion:
                step.add(seq, portion + extra)

    def _is_waiting_more_urgent(self, catching_up: list[Sequence]) -> bool:
        if not self.waiting or len(self.running) >= self._max_num_seqs:
            return False
        return not catching_up or _urgency(self.waiting[0]) < _urgency(catching_up[0])

    def _admit(self, seq: Sequence, step: Step) -> bool:
        """Start a waiting sequence if all its known tokens fit, with some room to grow."""
        hits = self._cached_blocks(seq)
        num_new = self.pool.num_blocks_for(seq.num_tokens) - len(hits)
        watermark = self._watermark if self.running else 0
        if num_new + self.pool.num_unused(hits) + watermark > self.pool.num_free:
            return False
        self.pool.share(hits)
        seq.block_table = hits + self.pool.allocate(num_new)
        seq.num_computed_tokens = len(hits) * self.pool.block_size
        seq.num_shareable_blocks = len(hits)
        if seq.num_cached_tokens is None:
            self._start(seq, step)
        self.num_waiting_tokens -= seq.num_tokens
        del self.waiting[0]
        seq.status = Status.RUNNING
        insort(self.running, seq, key=_age)
        return True

    def _start(self, seq: Sequence, step: Step) -> None:
        step.started.append(seq)
        seq.num_cached_tokens = seq.num_computed_tokens
        if self._prefix_caching:
            self.num_prefix_cache_queries += seq.num_tokens
            self.num_prefix_cache_hits += seq.num_computed_tokens

    def _cached_blocks(self, seq: Sequence) -> list[int]:
        """Blocks that hold the sequence's start; one token at least is left to compute."""
        if not self._prefix_caching or seq.scores_prompt:
            return []
        num_full = (seq.num_tokens - 1) // self.pool.block_size
        return self.pool.lookup(self._chain(seq, num_full)[:num_full])

    def _share_full_blocks(self, seq: Sequence) -> None:
        num_full = seq.num_computed_tokens // self.pool.block_size
        if self._prefix_caching:
            chain = self._chain(seq, num_full)
            for index in range(seq.num_shareable_blocks, num_full):
                self.pool.make_shareable(seq.block_table[index], chain[index])
        seq.num_shareable_blocks = num_full

    def _chain(self, seq: Sequence, length: int) -> list[Digest]:
        """The digests of the sequence's first full blocks, each worked out once."""
        size, digests = self.pool.block_size, seq.digests
        while len(digests) < length:
            start = len(digests) * size
            parent = digests[-1] if digests else seq.root_digest
            digests.append(chain_digest(parent, seq.token_ids[start : start + size]))
        return digests

    def _preempt(self, seq: Sequence) -> None:
        """Send the sequence back to wait, to be computed again before newer ones."""
        self.running.remove(seq)
        self._release(seq)
        self.num_preemptions += 1
        seq.urgency = 0
        self._wait(seq)

    def _wait(self, seq: Sequence) -> None:
        seq.status = Status.WAITING
        self.num_waiting_tokens += seq.num_tokens
        insort(self.waiting, seq, key=_urgency)

    def _release(self, seq: Sequence) -> None:
        self.pool.release(seq.block_table)
        seq.block_table = []
        seq.num_computed_tokens = 0
        seq.num_shareable_blocks = 0


def _urgency(seq: Sequence) -> tuple[int, int]:
    return seq.urgency, seq.arrival


def _age(seq: Sequence) -> int:
    return seq.arrival
