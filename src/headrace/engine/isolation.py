"""Runs a failed step again sequence by sequence, so that only what is at fault fails."""

from headrace.engine.decoding.decoder import Decoded, Decoder
from headrace.engine.scheduler import Step
from headrace.engine.sequence import Sequence
from headrace.executors.executor import Executor, Output

Failures = list[tuple[Sequence, Exception]]


def execute_apart(
    executor: Executor, decoder: Decoder, step: Step, error: ValueError
) -> tuple[list[tuple[Step, Output]], Failures]:
    """Run a refused step again; writing the same KV twice does no harm."""
    if len(step.sequences) == 1:
        return [], [(step.sequences[0], error)]
    computed: list[tuple[Step, Output]] = []
    failures: Failures = []
    for alone in _apart(step):
        try:
            computed.append((alone, executor.execute(decoder.batch(alone))))
        except ValueError as its_error:
            failures.append((alone.sequences[0], its_error))
    return computed, failures


def decode_apart(
    decoder: Decoder, step: Step, output: Output, error: Exception
) -> tuple[list[Decoded], Failures]:
    """Read again an output that could not be read as a whole."""
    if len(step.sequences) == 1:
        return [], [(step.sequences[0], error)]
    decoded: list[Decoded] = []
    failures: Failures = []
    row = 0
    for alone in _apart(step):
        rows = slice(row, row + decoder.num_rows(alone.sequences[0], alone.num_new_tokens[0]))
        row = rows.stop
        try:
            decoded.append(decoder.decode(alone, output.of(rows)))
        except Exception as its_error:  # noqa: BLE001 - reported for the sequence at fault
            failures.append((alone.sequences[0], its_error))
    return decoded, failures


def _apart(step: Step) -> list[Step]:
    return [
        Step([seq], [count]) for seq, count in zip(step.sequences, step.num_new_tokens, strict=True)
    ]
