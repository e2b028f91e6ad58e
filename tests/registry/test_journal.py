"""What the event loop writes down, on a real file that others may hold."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from headrace.errors import DrainingError, HeadraceError
from headrace.registry.journal import Journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "headrace.db"


@pytest.fixture
async def journal(path: Path) -> AsyncIterator[Journal]:
    journal = Journal(f"sqlite:///{path}", "127.0.0.1:8000")
    await journal.read()
    assert journal._store is not None
    with journal._store._engine.begin() as connection:
        connection.execute(text("PRAGMA busy_timeout = 20"))
    yield journal
    await journal.close()


async def begin(journal: Journal) -> int:
    return await journal.begin("load", "chat", previous=None, active=None, who="test")


async def outcomes(journal: Journal) -> list[str]:
    return [change.outcome for change in await journal.history(None, 10)]


async def test_an_end_that_cannot_be_written_is_written_later(journal: Journal, path: Path) -> None:
    ended: list[tuple[str, str]] = []
    journal.on_end = lambda kind, outcome: ended.append((kind, outcome))
    first, second = await begin(journal), await begin(journal)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    await journal.end(first, "done")
    await journal.end(second, "failed", "why")
    assert not journal.is_writable
    await journal.look_again()
    assert not journal.is_writable
    holder.close()
    await journal.look_again()
    assert journal.is_writable
    assert await outcomes(journal) == ["failed", "done"]
    assert ended == [("load", "done"), ("load", "failed")]  # once each


async def test_nothing_begins_that_cannot_be_written_down(journal: Journal, path: Path) -> None:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(HeadraceError, match="cannot be stored"):
        await begin(journal)
    holder.close()
    assert await outcomes(journal) == []


async def test_whoever_asks_at_the_very_end_is_told_that_it_is_the_end(journal: Journal) -> None:
    await journal.close()
    with pytest.raises(DrainingError):
        await journal.history(None, 10)
