from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scripted_serving import Served, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """One scripted model, `m0`."""
    async with serving(tmp_path) as each:
        yield each
