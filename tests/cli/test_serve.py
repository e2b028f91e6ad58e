from typing import Any

import pytest

from headrace.cli.serve import _announce, _overrides
from headrace.generation import ModelInfo
from headrace.registry.spec import ModelSpec


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
    declared = [ModelSpec(name="gone", source="smollm2"), ModelSpec(name="chat", source="smollm2")]
    _announce("http://127.0.0.1:8000", declared, [ModelInfo(**fields)])
    out = capsys.readouterr().out
    assert "headrace models load gone=smollm2 --url http://127.0.0.1:8000" in out
    assert '"model": "chat"' in out
    assert "chat@1: native-avx2, weights w8a16, KV cache bf16" in out
    assert "http://127.0.0.1:8000/v1/chat/completions" in out
