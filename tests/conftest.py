import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

from databases import database_url, file_url, new_postgres, postgres
from real_server import RealServer

__all__ = ["database_url", "file_url", "new_postgres", "postgres"]

# An example's time says how busy the machine is, not whether the code is right.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    """Whatever a test configures (a server in this process does), the next one does not see."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    before = structlog.get_config()
    yield
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        if handler not in handlers:
            handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    structlog.configure(**before)


@pytest.fixture(scope="session")
def server() -> Iterator[RealServer]:
    """One real server with SmolLM2 for every test that does not hurt it."""
    with RealServer() as running:
        yield running
