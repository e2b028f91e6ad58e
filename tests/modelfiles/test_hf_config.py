import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ModelFileError
from headrace.modelfiles.hf_config import read_hf_config
from headrace.modelfiles.model import open_model
from modelfiles.tiny import CONFIG, write_tokenizer

GEMMA = {
    **CONFIG,
    "model_type": "gemma3_text",
    "num_hidden_layers": 8,
    "head_dim": 16,
    "rope_theta": 1e6,
}


def test_old_and_new_style_rope_keys_mean_the_same() -> None:
    scaling = {"rope_type": "linear", "factor": 4.0}
    old = read_hf_config("c", {**CONFIG, "rope_scaling": scaling})
    plain = {key: value for key, value in CONFIG.items() if key != "rope_theta"}
    new = read_hf_config("c", {**plain, "rope_parameters": {**scaling, "rope_theta": 10000.0}})
    assert old == new
    assert old.layer_ropes[0].inverse_frequencies[0] == 0.25


def test_gemma_has_two_thetas_and_every_sixth_layer_sees_all() -> None:
    config = read_hf_config("c", {**GEMMA, "sliding_window": 64})
    assert config.layer_windows == (64, 64, 64, 64, 64, 0, 64, 64)
    local, whole = config.layer_ropes[0], config.layer_ropes[5]
    assert local.inverse_frequencies[1] != whole.inverse_frequencies[1]
    assert config.embedding_scale == 32**0.5
    assert config.attention_scale == 256**-0.5
    assert config.tied_embeddings
    assert config.activation == "gelu_tanh"


def test_the_text_part_of_a_multimodal_gemma_is_read_with_its_defaults() -> None:
    text = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6}
    config = read_hf_config("c", {"model_type": "gemma3", "text_config": text})
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert config.vocab_size == 262_208


def test_mistral_slides_on_every_layer_only_if_it_says_so() -> None:
    base = {**CONFIG, "model_type": "mistral"}
    assert read_hf_config("c", {**base, "sliding_window": 16}).layer_windows == (16, 16)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported are llama"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; expected one of silu"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing; expected an integer"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; expected an integer"),
        ({"hidden_size": "big"}, "hidden_size is 'big'; expected an integer"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 key-value heads"),
        ({"head_dim": 5}, "head size 5 is odd"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rope_scaling": {"rope_type": "su"}}, "rope scaling 'su' is not supported; supported:"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope scaling 'llama3' is incomplete"),
        ({"rope_scaling": [1]}, "rope_scaling is [1]; expected a mapping"),
        ({"layer_types": ["full_attention"]}, "expected a list of 2 names"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized by 'awq' are not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ],
)
def test_what_we_cannot_run_is_named(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read_hf_config("some/config.json", {**CONFIG, **change})
    assert caught.value.message.startswith("some/config.json: ")
    assert expected in caught.value.message


SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
REFERENCES: list[tuple[str, dict[str, Any]]] = [
    ("LlamaConfig", {}),
    ("LlamaConfig", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("LlamaConfig", {"rope_parameters": LLAMA3, "head_dim": 32}),
    ("LlamaConfig", {"rope_parameters": YARN}),
    ("LlamaConfig", {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}}),
    ("LlamaConfig", {"rope_parameters": {**YARN, "truncate": False, "beta_fast": 16}}),
    ("LlamaConfig", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ),
    ("MistralConfig", {"sliding_window": 32}),
    ("MistralConfig", {"sliding_window": None}),
    ("Qwen2Config", {}),
    ("Qwen2Config", {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 32}),
    ("Qwen3Config", {"head_dim": 32}),
    ("Qwen3Config", {"head_dim": 32, "attention_bias": True}),
    ("Gemma3TextConfig", {"num_hidden_layers": 7, "head_dim": 32, "sliding_window": 32}),
]


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "options"), REFERENCES)
def test_a_checkpoint_of_transformers_means_the_same_to_us(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**SHAPE | options)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    files = open_model(tmp_path)
    expected = model.state_dict()
    if files.config.tied_embeddings:
        del expected["lm_head.weight"]
    assert files.weights.names() == set(expected)
    for name, values in expected.items():
        gemma_norm = files.config.post_norms and "norm" in name
        assert (files.weights.float32(name) == (values + gemma_norm).numpy()).all(), name
    assert_same_arithmetic(files.config, model)


def assert_same_arithmetic(ours: Any, model: Any) -> None:
    rotary, types = model.model.rotary_emb, getattr(model.config, "layer_types", None)
    for index, layer in enumerate(model.model.layers):
        prefix = f"{types[index]}_" if ours.post_norms else ""
        rope = ours.layer_ropes[index]
        frequencies = getattr(rotary, f"{prefix}inv_freq").tolist()
        assert rope.inverse_frequencies == pytest.approx(frequencies, rel=1e-6)
        factor = getattr(rotary, f"{prefix}attention_scaling")
        assert rope.attention_factor == pytest.approx(factor)
        assert ours.attention_scale == pytest.approx(layer.self_attn.scaling)
        window = getattr(layer.self_attn, "sliding_window", None)
        if window is None and model.config.model_type == "mistral":
            window = model.config.sliding_window
        assert ours.layer_windows[index] == (window or 0)


def test_a_config_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"config\.json: not valid JSON"):
        open_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(ModelFileError, match=r"config\.json: expected a JSON object"):
        open_model(tmp_path)
