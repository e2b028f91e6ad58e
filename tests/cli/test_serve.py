from typing import Any

import pytest

from headrace.cli.serve import _announce, _overrides
from headrace.endpoints import UpstreamConfig
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
    _announce("http://127.0.0.1:8000", declared, {"chat@1": ModelInfo(**fields)})
    out = capsys.readouterr().out
    assert "headrace models load gone=smollm2 --url http://127.0.0.1:8000" in out
    assert '"model": "chat"' in out
    assert "chat@1: native-avx2, weights w8a16, KV cache bf16" in out
    assert "http://127.0.0.1:8000/v1/chat/completions" in out


def test_the_banner_says_where_upstreams_are(capsys: pytest.CaptureFixture[str]) -> None:
    url = "https://host/v1"
    named = UpstreamConfig(url=url, name="gpu-1")
    declared = [
        ModelSpec(name="gpt", source=url, upstreams=(named, UpstreamConfig(url="http://b/v1"))),
        ModelSpec(name="away", source=url, upstreams=(UpstreamConfig(url=url),)),
        ModelSpec(name="mixed", source="smollm2", upstreams=(named,)),
    ]
    info = ModelInfo(
        model_id="what it is called there",
        architecture="",
        executor="upstream-vllm",
        precision=None,
        kv_cache_precision=None,
        max_model_len=None,
        vocab_size=None,
        block_size=None,
        num_blocks=None,
        has_chat_template=True,
        fingerprint="",
    )
    _announce("http://127.0.0.1:8000", declared, {"gpt@1": info})
    out = capsys.readouterr().out
    assert "  gpt@1: upstream-vllm, upstream gpu-1, upstream b:80\n" in out
    assert "    headrace models load away=https://host/v1 --url http://127.0.0.1:8000\n" in out
    _announce("http://127.0.0.1:8000", declared, {"gpt@1": info}, {"gpt", "away"})
    assert "  away: none of its upstreams answers yet\n" in capsys.readouterr().out
    assert "    POST http://127.0.0.1:8000/api/v1/models/load and its upstreams\n" in out
    assert '"model": "gpt"' in out
