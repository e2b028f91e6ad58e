from collections.abc import Iterator

import pytest
from hypothesis import settings

from real_server import RealServer

# An example's time says how busy the machine is, not whether the code is right.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")


@pytest.fixture(scope="session")
def server() -> Iterator[RealServer]:
    """One real server with SmolLM2 for every test that does not hurt it."""
    with RealServer() as running:
        yield running
