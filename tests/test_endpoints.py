from typing import Any

import pytest

from headrace.endpoints import UpstreamConfig
from headrace.errors import ConfigurationError


@pytest.mark.parametrize(
    ("url", "base", "root"),
    [
        ("https://host/v1", "https://host/v1", "https://host"),
        ("https://host:8443/v1/", "https://host:8443/v1", "https://host:8443"),
        ("http://host/openai/v1", "http://host/openai/v1", "http://host/openai"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_routes_are_found_from_the_base_url(url: str, base: str, root: str) -> None:
    config = UpstreamConfig(url=url)
    assert (str(config.base), str(config.root).rstrip("/")) == (base, root)
    assert str(config.base / "models") == f"{base}/models"
    assert str(config.root / "health") == f"{root}/health"


def test_an_upstream_without_a_name_goes_by_its_address() -> None:
    assert UpstreamConfig(url="https://host:8443/v1").label == "host:8443"
    assert UpstreamConfig(url="https://host/v1", name="west").label == "west"


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "host/v1"},
        {"url": "ftp://host/v1"},
        {"url": "https:///v1"},
        {"url": "https://host:99999/v1"},
        {"url": "https://user:secret@host/v1"},
        {"url": "https://host/v1?key=secret"},
        {"url": "https://host/v1#secret"},
        {"connect_timeout": 0},
        {"idle_timeout": float("inf")},
        {"first_byte_timeout": float("nan")},
        {"probe_timeout": -1},
        {"weight": -1},
        {"weight": float("inf")},
        {"max_connections": 0},
    ],
)
def test_what_makes_no_sense_stops_the_start(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="upstream") as caught:
        UpstreamConfig(**{"url": "https://host/v1", **fields})
    assert "secret" not in str(caught.value)
