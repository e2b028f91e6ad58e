"""Estimates held against what executors and whole workers really take."""

import json
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from executors.conftest import require_native_kernels
from executors.tiny import CONFIG, tiny_model
from headrace.errors import ConfigurationError
from headrace.executors.config import ExecutorConfig
from headrace.executors.cpu import machine
from headrace.executors.footprint import Footprint, footprint, footprint_of
from headrace.executors.select import create_executor
from headrace.modelfiles.hf_config import read_hf_config
from headrace.modelfiles.layout import expected_shapes
from modelfiles.tiny import CONFIG as HF_CONFIG
from modelfiles.tiny import write_raw_safetensors
from real_models import GEMMA3, SMOLLM2, cache_dir, real_model

MIB = 1 << 20

WORKER = """
import json, sys
from pathlib import Path
import numpy as np
from headrace.executors.config import ExecutorConfig
from headrace.executors.executor import Batch
from headrace.worker.loading import load
from headrace.worker.memory import resident_bytes
from headrace.worker.spec import WorkerSpec

source, state_dir, settings = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
spec = WorkerSpec(
    model_id="m@1", source=source, state_dir=state_dir, executor=ExecutorConfig(**settings)
)
executor = load(spec, lambda _phase, _share: None).executor
at_start = resident_bytes()
one, blocks = np.zeros(1, np.int32), list(range(executor.num_blocks))
for start in range(0, executor.num_blocks * executor.block_size - 512, 512):
    executor.execute(
        Batch(
            token_ids=np.zeros(512, np.int32),
            num_new_tokens=one + 512,
            num_computed_tokens=one + start,
            block_tables=[blocks],
            rows=one + 511,
        )
    )
print(json.dumps([at_start, resident_bytes()]))
"""
"""Loads a model as a worker does and fills the KV cache, in a process that did nothing else."""


def resident(source: str, settings: dict[str, Any]) -> tuple[int, int]:
    real_model(source)  # downloaded, or the test is skipped
    done = subprocess.run(
        [sys.executable, "-c", WORKER, source, str(cache_dir()), json.dumps(settings)],
        capture_output=True,
        text=True,
        check=True,
    )
    at_start, full = json.loads(done.stdout.splitlines()[-1])
    return at_start, full


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("source", "executor", "precision"),
    [
        (SMOLLM2, "native", "bf16"),
        (SMOLLM2, "native", "w8a16"),
        (SMOLLM2, "native", "w4a16"),
        (SMOLLM2, "openvino", "auto"),
        (GEMMA3, "native", "w8a16"),
        (GEMMA3, "openvino", "int8"),
    ],
)
def test_a_worker_holds_what_was_estimated(source: str, executor: str, precision: str) -> None:
    if executor == "native":
        require_native_kernels()
    settings: dict[str, Any] = {
        "executor": executor,
        "precision": precision,
        "kv_cache_memory": 40 * MIB,
    }
    at_start, full = resident(source, settings)
    found = footprint(real_model(source).path, ExecutorConfig(**settings))
    assert 39 * MIB <= found.kv_bytes <= 40 * MIB
    assert found.at_start == pytest.approx(at_start, rel=0.25)
    assert found.total == pytest.approx(full, rel=0.25)


PRECISIONS = ["fp32", "auto", "int8"]


@pytest.mark.parametrize("head_dim", [32, 64])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_openvino_cache_has_the_estimated_size(head_dim: int, precision: Any) -> None:
    rope = replace(CONFIG.layer_ropes[0], inverse_frequencies=(1.0,) * (head_dim // 2))
    shape = replace(CONFIG, head_dim=head_dim, layer_ropes=(rope,) * 2)
    config = ExecutorConfig(executor="openvino", kv_cache_precision=precision)
    files = tiny_model(shape)
    executor: Any = create_executor(files, config, lambda _phase, _share: None)
    taken = sum(tensor.byte_size for tensor in executor._cache.tensors.values())
    executor.close()
    assert footprint_of(shape, files.weights, config, machine()).kv_bytes == taken


@pytest.mark.usefixtures("native_kernels")
@pytest.mark.parametrize("precision", ["bf16", "w8a16", "w8a8"])
def test_packed_weights_have_about_the_estimated_size(precision: Any) -> None:
    shape = replace(CONFIG, vocab_size=2048, hidden_size=256, intermediate_size=512)
    config = ExecutorConfig(executor="native", precision=precision)
    files = tiny_model(shape)
    executor: Any = create_executor(files, config, lambda _phase, _share: None)
    packed = executor._weights.content.num_bytes
    executor.close()
    found = footprint_of(shape, files.weights, config, machine())
    assert found.weight_bytes == pytest.approx(packed, rel=0.1)


def huge_folder(path: Path) -> None:
    """A Llama of 8 billion numbers, of which the file system stores none."""
    config = {
        **HF_CONFIG,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    (path / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, size in expected_shapes(read_hf_config("config.json", config)).items():
        start, end = end, end + 2 * prod(size)
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [start, end]}
    write_raw_safetensors(path / "model.safetensors", header, b"")
    with (path / "model.safetensors").open("r+b") as file:
        file.seek(0, 2)
        file.truncate(file.tell() + end)


@pytest.mark.usefixtures("native_kernels")
def test_large_files_are_measured_by_their_headers(tmp_path: Path) -> None:
    huge_folder(tmp_path)
    sizes = {
        precision: footprint(
            tmp_path, ExecutorConfig(executor="native", precision=precision, max_num_seqs=1)
        )
        for precision in ("bf16", "w8a16")
    }
    assert sizes["bf16"].weight_bytes == pytest.approx(16.1e9, rel=0.05)
    assert sizes["w8a16"].weight_bytes == pytest.approx(8.6e9, rel=0.05)
    assert sizes["bf16"].kv_bytes == 8192 * 32 * 8 * 128 * 2 * 2  # one context at most


def test_a_context_that_the_model_was_not_made_for_is_refused() -> None:
    files = tiny_model()
    config = ExecutorConfig(executor="openvino", max_model_len=1 << 20)
    with pytest.raises(ConfigurationError, match="made for 256 tokens"):
        footprint_of(CONFIG, files.weights, config, machine())


def test_only_mapped_weights_are_shared_by_workers() -> None:
    mapped = Footprint(100, 20, 3, has_shared_weights=True)
    assert (mapped.total, mapped.at_start, mapped.shared_bytes) == (123, 103, 100)
    assert replace(mapped, has_shared_weights=False).shared_bytes == 0
