"""Settings of a file's text, without the environment of whoever runs the tests."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError
from headrace.settings import Settings, load_settings

Load = Callable[..., Settings]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("HEADRACE_") and "__" in name:
            monkeypatch.delenv(name)


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load_text(text: str = "", **overrides: object) -> Settings:
        path = tmp_path / "headrace.toml"
        path.write_text(text)
        return load_settings(path, overrides)

    return load_text


def refusal(load: Load, text: str = "", **overrides: object) -> str:
    """The sentence, without the file that it names first."""
    with pytest.raises(ConfigurationError) as error:
        load(text, **overrides)
    assert "\n" not in error.value.message
    return error.value.message.partition("headrace.toml: ")[2] or error.value.message
