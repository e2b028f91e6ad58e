"""Makes the HTTP client of one upstream: its TLS and its headers, with the key."""

import ssl

from headrace.endpoints import UpstreamConfig
from headrace.errors import ConfigurationError
from headrace.routing.http.client import HttpClient


def open_session(config: UpstreamConfig, api_key: str | None) -> HttpClient:
    """A client whose requests carry the key."""
    return HttpClient(
        config.base,
        _tls(config),
        headers=_headers(api_key),
        connect_timeout=config.connect_timeout,
    )


def _headers(api_key: str | None) -> dict[str, str]:
    headers = {
        "Accept-Encoding": "identity",  # bytes of a stream must not wait for a compressor
        "Content-Type": "application/json",
        "User-Agent": "headrace",
    }
    if api_key is None:
        return headers
    if not (api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key != ""):
        raise ConfigurationError("an upstream's API key holds what a header cannot, or nothing")
    return headers | {"Authorization": f"Bearer {api_key}"}


def _tls(config: UpstreamConfig) -> ssl.SSLContext | None:
    if config.base.scheme == "http":
        return None
    context = ssl.create_default_context()
    if config.ca_file is not None:
        try:
            context.load_verify_locations(config.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"{config.ca_file}: no certificates: {error}") from None
    return context
