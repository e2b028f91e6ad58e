"""Requests in, chunks out, one step at a time. No threads, no clock, no network.

A step is two calls, so that a caller with a clock can say when the arithmetic ended: `compute`
decides and runs the forward, `collect` turns its predictions into chunks. `step` is both.
"""

import heapq
import random

import structlog

from headrace.engine.active_request import ActiveRequest, Track
from headrace.engine.answer import Answer
from headrace.engine.block_pool import BlockPool, root_digest
from headrace.engine.config import EngineConfig
from headrace.engine.decoding.autoregressive import AutoregressiveDecoder
from headrace.engine.decoding.decoder import Decoded
from headrace.engine.delivery import Delivery
from headrace.engine.isolation import decode_apart, execute_apart
from headrace.engine.sampling_state import SamplingState
from headrace.engine.scheduler import Scheduler, Step
from headrace.engine.sequence import Sequence
from headrace.engine.validation import RequestLimits
from headrace.engine.vocabulary import Vocabulary
from headrace.errors import DeadlineError, HeadraceError, InvalidRequestError
from headrace.executors.executor import Executor, Output
from headrace.generation import Chunk, EngineStats, GenerationRequest, TokenLogprob

log = structlog.get_logger()


class Engine:
    """Owns the scheduler and the requests in progress. One caller at a time."""

    def __init__(self, executor: Executor, tokenizer: Vocabulary, config: EngineConfig) -> None:
        self.config = config
        self.limits = RequestLimits(
            min(executor.max_model_len, executor.num_blocks * executor.block_size),
            executor.vocab_size,
            config,
        )
        self.scheduler = Scheduler(BlockPool(executor.num_blocks, executor.block_size), config)
        self.num_steps = 0
        self._executor = executor
        self._tokenizer = tokenizer
        self._decoder = AutoregressiveDecoder(
            executor.vocab_size, executor.block_size, tokenizer.token_bytes
        )
        self._requests: dict[str, ActiveRequest] = {}
        self._tracks: dict[Sequence, Track] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._computed: list[tuple[Step, Output]] = []
        self._deliveries: list[Delivery] = []
        self._started: list[str] = []
        self._ended: list[str] = []
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._num_aborted = 0

    @property
    def has_work(self) -> bool:
        return bool(self._requests or self._deliveries)

    @property
    def stats(self) -> EngineStats:
        scheduler = self.scheduler
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_waiting_tokens=scheduler.num_waiting_tokens,
            num_blocks=scheduler.pool.num_blocks,
            num_free_blocks=scheduler.pool.num_free,
            num_steps=self.num_steps,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self._num_generated_tokens,
            num_prefix_cache_queries=scheduler.num_prefix_cache_queries,
            num_prefix_cache_hits=scheduler.num_prefix_cache_hits,
            num_preemptions=scheduler.num_preemptions,
            num_aborted=self._num_aborted,
        )

    def add(self, request: GenerationRequest, prompt_ids: list[int], now: float) -> None:
        """Queue a request; raises InvalidRequestError when it can never be served."""
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request {request.request_id} is already in progress")
        max_tokens = self.limits.check(request, prompt_ids)
        seed = request.sampling.seed
        active = ActiveRequest(
            request,
            prompt_ids,
            max_tokens,
            random.getrandbits(64) if seed is None else seed,
            now,
        )
        self._add_sequence(active, active.indices[0])
        self._requests[request.request_id] = active
        if request.deadline is not None:
            self._watch_deadline(request.deadline, request.request_id)

    def abort(self, request_id: str) -> None:
        """Forget a request and free its blocks; nothing more is delivered for it."""
        if (active := self._requests.get(request_id)) is not None:
            self._num_aborted += 1
            self._end(active)

    def step(self, now: float) -> list[Delivery]:
        self.compute(now)
        return self.collect(now)

    def compute(self, now: float) -> None:
        """Expire, schedule, and run the forward."""
        self._expire(now)
        step = self.scheduler.schedule()
        for seq in step.started:
            self._start(self._tracks[seq], now)
        self._computed = self._execute(step) if step.sequences else []

    def collect(self, now: float) -> list[Delivery]:
        """Turn what was computed into deliveries, in the order they are to be read."""
        batch_size = sum(len(step.sequences) for step, _ in self._computed)
        for step, output in self._computed:
            self.scheduler.update(step)
            for decoded in self._decode(step, output):
                self._record_scores(decoded)
                self._extend(decoded, batch_size, now)
        self.num_steps += bool(self._computed)
        self._computed = []
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def take_changes(self) -> tuple[list[str], list[str]]:
        """Requests that left the queue and requests that ended since the last call."""
        changes = self._started, self._ended
        self._started, self._ended = [], []
        return changes

    def _add_sequence(self, active: ActiveRequest, index: int) -> None:
        request, prompt_ids = active.request, active.prompt_ids
        params = request.sampling
        answer = Answer(
            index,
            params,
            self._tokenizer.detokenizer(prompt_ids, skip_special_tokens=params.skip_special_tokens),
            max_tokens=active.max_tokens,
            eos_token_ids=self._tokenizer.eos_token_ids,
        )
        seq = Sequence(
            request.request_id,
            index,
            prompt_ids.copy(),
            SamplingState(
                params,
                seed=active.seed,
                index=index,
                prompt_ids=prompt_ids,
                stop_ids={*self._tokenizer.eos_token_ids, *params.stop_token_ids},
            ),
            root_digest(request.cache_salt),
            scores_prompt=not active.tracks and active.owes_scores,
        )
        track = Track(active, seq, answer)
        if (answered := active.answered(index)) is not None:
            track.resume(answered)
        first = active.tracks[0].seq if active.tracks else None
        active.tracks.append(track)
        self._tracks[seq] = track
        self.scheduler.add(seq, like=first)

    def _start(self, track: Track, now: float) -> None:
        track.started_at = now
        active = track.owner
        if not active.has_started:
            active.has_started = True
            self._num_prompt_tokens += len(active.prompt_ids)
            self._started.append(active.request.request_id)

    def _watch_deadline(self, deadline: float, request_id: str) -> None:
        if len(self._deadlines) > 2 * len(self._requests) + 64:  # most are of ended requests
            kept = [entry for entry in self._deadlines if entry[1] in self._requests]
            heapq.heapify(kept)
            self._deadlines = kept
        heapq.heappush(self._deadlines, (deadline, request_id))

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, request_id = heapq.heappop(self._deadlines)
            active = self._requests.get(request_id)
            if active is not None and active.request.deadline == deadline:
                state = "while it was answered" if active.has_started else "before it was started"
                self._fail(active, DeadlineError(f"the request's deadline passed {state}"))

    def _execute(self, step: Step) -> list[tuple[Step, Output]]:
        try:
            return [(step, self._executor.execute(self._decoder.batch(step)))]
        except ValueError as error:
            computed, failures = execute_apart(self._executor, self._decoder, step, error)
            self._fail_sequences(failures)
            return computed

    def _decode(self, step: Step, output: Output) -> list[Decoded]:
        try:
            return [self._decoder.decode(step, output)]
        except Exception as error:  # noqa: BLE001 - whoever is not at fault must be answered
            decoded, failures = decode_apart(self._decoder, step, output, error)
            self._fail_sequences(failures)
            return decoded

    def _record_scores(self, decoded: Decoded) -> None:
        for seq, start, scores in decoded.prompt_logprobs:
            if (track := self._tracks.get(seq)) is not None:
                active = track.owner
                if not active.prompt_logprobs:
                    first = seq.token_ids[0]
                    active.prompt_logprobs.append(
                        TokenLogprob(first, self._tokenizer.token_bytes(first), None, [])
                    )
                active.add_prompt_logprobs(start, scores)

    def _extend(self, decoded: Decoded, batch_size: int, now: float) -> None:
        """Give each sequence its token. This is the loop that every generated token passes."""
        tracks, deliveries, num_generated = self._tracks, self._deliveries, 0
        for seq, token_id, logprob in zip(
            decoded.sequences, decoded.token_ids, decoded.logprobs, strict=True
        ):
            if (track := tracks.get(seq)) is None:
                continue  # its request failed in this step
            answer = track.answer
            try:
                if batch_size > track.batch_size:  # noqa: PLR1730 - max() costs more
                    track.batch_size = batch_size
                if track.first_token_at is None:
                    self._begin_answer(track, now)
                if answer.finish_reason is None:
                    num_generated += 1
                    seq.token_ids.append(token_id)
                    if (edits := seq.sampling.edits) is not None:
                        edits.add(token_id)
                    if (chunk := answer.push(token_id, logprob)) is not None:
                        deliveries.append(Delivery(seq.request_id, chunk))
                        continue
                if answer.finish_reason is not None:
                    self._finish(track, now)
            except Exception as error:  # noqa: BLE001 - the other sequences must be answered
                self._fail_sequences([(seq, error)])
        self._num_generated_tokens += num_generated

    def _begin_answer(self, track: Track, now: float) -> None:
        """The prompt is computed: send it where asked for, and let its siblings share it."""
        track.first_token_at = now
        track.seq.scores_prompt = False
        active = track.owner
        if active.owes_echo(track.seq.index):
            self._deliveries.append(Delivery(track.seq.request_id, self._echo(track)))
        if active.max_tokens == 0:
            track.answer.finish("length")
        if track is active.tracks[0]:
            for index in active.indices[1:]:
                self._add_sequence(active, index)

    def _echo(self, track: Track) -> Chunk:
        active = track.owner
        request, prompt_ids = active.request, active.prompt_ids
        text = request.prompt
        if not isinstance(text, str):
            skip = request.sampling.skip_special_tokens
            text = self._tokenizer.decode(prompt_ids, skip_special_tokens=skip)
        scored = request.sampling.logprobs is not None
        return Chunk(track.seq.index, text, prompt_ids, active.prompt_logprobs if scored else None)

    def _finish(self, track: Track, now: float) -> None:
        """End one sequence; its request ends with its last."""
        active, seq = track.owner, track.seq
        self._deliveries.append(Delivery(seq.request_id, track.last_chunk(now)))
        self.scheduler.finish(seq)
        del self._tracks[seq]
        active.num_unfinished -= 1
        if active.num_unfinished == 0:
            self._end(active)

    def _fail_sequences(self, failures: list[tuple[Sequence, Exception]]) -> None:
        for seq, error in failures:
            log.error("request.failed", request_id=seq.request_id, exc_info=error)
            if (track := self._tracks.get(seq)) is not None:
                self._fail(track.owner, HeadraceError("the engine failed on this request"))

    def _fail(self, active: ActiveRequest, error: HeadraceError) -> None:
        self._deliveries.append(Delivery(active.request.request_id, error=error))
        self._end(active)

    def _end(self, active: ActiveRequest) -> None:
        """Take a request out with whatever it still holds."""
        for track in active.tracks:
            if self._tracks.pop(track.seq, None) is not None:
                self.scheduler.finish(track.seq)
        del self._requests[active.request.request_id]
        self._ended.append(active.request.request_id)
