from collections.abc import Iterator

import pytest

from models_server import ModelsServer


@pytest.fixture
def server() -> Iterator[ModelsServer]:
    """Shadows the real one: what is asked here, a script answers."""
    with ModelsServer() as running:
        yield running
