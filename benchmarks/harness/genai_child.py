"""OpenVINO GenAI's continuous batching in a process of its own, driven over stdin and stdout.

Reads one `Load` a line and answers with one `Run` a line. The first line out says that the first
answer has been generated. Tokens are stamped when a step ends; nothing is detokenized or sent
anywhere, which makes this the most the library can give.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino
import openvino_genai

from harness.load import Load, Run, Sample, StopRule


def convert(gguf: Path) -> None:
    """Have the library read the GGUF file and write its own format beside it, once."""
    if not (gguf.parent / "openvino_model.xml").exists():
        openvino_genai.LLMPipeline(gguf, "CPU", enable_save_ov_model=True)


def open_pipeline(folder: Path) -> openvino_genai.ContinuousBatchingPipeline:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = 512
    return openvino_genai.ContinuousBatchingPipeline(folder, scheduler, "CPU")


def generation_config(max_tokens: int) -> openvino_genai.GenerationConfig:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = max_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


@dataclass(slots=True)
class Answer:
    """One request that the pipeline is working on."""

    handle: Any  # a type that the library does not export
    sent: float
    num_prompt_tokens: int
    num_tokens: int = 0
    arrivals: list[float] = field(default_factory=list)

    def collect(self, now: float) -> None:
        while self.handle.can_read():
            outputs = self.handle.read()
            self.num_tokens += sum(len(output.generated_ids) for output in outputs.values())
            self.arrivals.append(now)

    @property
    def is_done(self) -> bool:
        return bool(self.handle.get_status() != openvino_genai.GenerationStatus.RUNNING)

    def sample(self) -> Sample:
        return Sample(self.sent, self.arrivals, self.num_prompt_tokens, self.num_tokens)


class ClosedLoop:
    """The load's users, without threads: whoever has an answer sends the next prompt."""

    def __init__(self, pipeline: openvino_genai.ContinuousBatchingPipeline, load: Load) -> None:
        self._pipeline = pipeline
        self._load = load
        self._config = generation_config(load.output_tokens)
        self._prompts: Iterator[tuple[int, list[int]]] = iter(enumerate(load.prompts))
        self._answers: list[Answer] = []
        self._samples: list[Sample] = []

    def run(self) -> Run:
        started = time.monotonic()
        rule = StopRule(self._load, started)
        for _ in range(self._load.concurrency):
            self._send(rule)
        while self._answers:
            self._pipeline.step()
            self._collect(rule, time.monotonic())
        assert rule.full_until is not None
        return Run(self._samples, started, rule.full_until)

    def _send(self, rule: StopRule) -> None:
        number, prompt = next(self._prompts, (0, None))
        if prompt is None:
            rule.stopped(time.monotonic())
            return
        rule.sent()
        sent = time.monotonic()
        ids = openvino.Tensor(np.asarray([prompt], dtype=np.int64))
        handle = self._pipeline.add_request(number, ids, self._config)
        self._answers.append(Answer(handle, sent, len(prompt)))

    def _collect(self, rule: StopRule, now: float) -> None:
        for answer in self._answers:
            answer.collect(now)
        done = [answer for answer in self._answers if answer.is_done]
        for answer in done:
            self._answers.remove(answer)
            self._samples.append(answer.sample())
            if rule.reached(now):
                rule.stopped(now)
            else:
                self._send(rule)


def main() -> None:
    if sys.argv[1] == "convert":
        convert(Path(sys.argv[2]))
        return
    pipeline = open_pipeline(Path(sys.argv[2]))
    ClosedLoop(pipeline, Load([[1, 2, 3]], 1, 1, 1, 0.0)).run()
    print("ready", flush=True)
    for line in sys.stdin:
        load = msgspec.json.decode(line, type=Load)
        run = ClosedLoop(pipeline, load).run()
        print(msgspec.json.encode(run).decode(), flush=True)


if __name__ == "__main__":
    main()
