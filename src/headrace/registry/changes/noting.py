"""A change that has begun ends in the history, whatever becomes of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.errors import HeadraceError
from headrace.registry.journal import Journal


@asynccontextmanager
async def ended_if_it_fails(journal: Journal, change_id: int) -> AsyncIterator[None]:
    try:
        yield
    except HeadraceError as error:
        await journal.end(change_id, "failed", error.message)
        raise
