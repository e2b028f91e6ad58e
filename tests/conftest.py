from collections.abc import Iterator

import pytest

from real_server import RealServer


@pytest.fixture(scope="session")
def server() -> Iterator[RealServer]:
    """One real server with SmolLM2 for every test that does not hurt it."""
    with RealServer() as running:
        yield running
