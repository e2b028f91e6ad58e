from pathlib import Path

import overhead
import pytest
from harness import stacks
from harness.prompts import Prompts
from harness.random_weights import Q4_0, write_model
from tiny_model import SHAPE

from headrace.modelfiles.model import open_model


@pytest.fixture(scope="module")
def model(vocabulary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    write_model(path, SHAPE, vocabulary, kind=Q4_0, seed=0)
    return path


@pytest.mark.parametrize("mode", [[], ["--instant", "1"]], ids=["computed", "instant"])
async def test_a_real_server_s_cost_is_told_by_side_and_process(
    mode: list[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "find", lambda: None)  # it takes seconds and may not be allowed
    options = overhead.parser().parse_args(
        [
            *(*mode, "--out", str(tmp_path), "--concurrency", "2", "--seconds", "0.3"),
            *("--prompt-tokens", "16", "--output-tokens", "16"),
        ]
    )
    tokenizer = open_model(model).tokenizer
    prompts = Prompts(tokenizer, options.prompt_tokens)
    texts = [tokenizer.decode(ids) for ids in prompts.take(0, 3)]
    found = await overhead.measure(model, texts, prompts, options)
    first, load = found["first_token_ms"], found["load"]
    assert first["before_the_engine"]["p50"] > 0
    assert first["after_the_engine"]["p50"] > 0
    assert first["added"]["p50"] < first["added"]["p99"]
    assert load["worker_us_per_token"] > load["worker_loop_us_per_token"] > 0
    if mode:
        assert load["tokens_per_second"] < 2 / 0.001
