"""Keys come from the environment, once, and go to their own URLs alone."""

import os

import pytest

from headrace.endpoints import UpstreamConfig
from headrace.errors import ConfigurationError
from headrace.registry.storage.stored import spec_to_json
from settings.conftest import Load, refusal

URL = "https://gpu/v1"
SECRET = "sk-very-secret"
TEXT = f"[[models]]\nname = 'x'\n[[models.upstreams]]\nurl = '{URL}'\napi_key_env = 'GPU_KEY'\n"
UPSTREAM = UpstreamConfig(url=URL, api_key_env="GPU_KEY")


def test_the_key_is_what_the_variable_held_at_the_start(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_KEY", SECRET)
    keys = load(TEXT).api_keys
    monkeypatch.delenv("GPU_KEY")
    assert keys.of(UPSTREAM) == SECRET
    assert keys.of(UpstreamConfig(url=URL)) is None


def test_a_key_goes_to_the_url_beside_which_it_is_named_alone(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_KEY", SECRET)
    keys = load(f"{TEXT}[[models.upstreams]]\nurl = 'https://other/v1'\n").api_keys
    for url in ("https://other/v1", "http://gpu/v1", "https://gpu:8443/v1", f"{URL}/x"):
        with pytest.raises(ConfigurationError, match="names no api_key_env GPU_KEY") as error:
            keys.of(UpstreamConfig(url=url, api_key_env="GPU_KEY"))
        assert SECRET not in error.value.message
    with pytest.raises(ConfigurationError):
        keys.of(UpstreamConfig(url=URL, api_key_env="HOME"))
    assert keys.of(UpstreamConfig(url="https://GPU/v1/", api_key_env="GPU_KEY")) == SECRET


def test_no_key_is_in_what_is_printed_or_stored(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_KEY", SECRET)
    settings = load(TEXT)
    assert SECRET not in repr(settings) + str(settings.api_keys)
    assert SECRET not in spec_to_json(settings.models[0])


def test_a_variable_that_is_not_set_stops_the_start(load: Load) -> None:
    assert "GPU_KEY" not in os.environ
    assert refusal(load, TEXT) == (
        "models.0.upstreams.0.api_key_env: the environment variable GPU_KEY is not set"
    )


@pytest.mark.parametrize("value", ["", " ", "secret\n", "sec\tret", "sécret", " secret", "\x7f"])
def test_what_no_header_can_hold_stops_the_start_and_is_not_shown(
    load: Load, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("GPU_KEY", value)
    assert refusal(load, TEXT) == (
        "models.0.upstreams.0.api_key_env: the environment variable GPU_KEY is empty or holds what"
        " a header cannot"
    )
