"""The changes of a server as rows, bounded in number. Its caller holds the transaction."""

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Row,
    bindparam,
    case,
    delete,
    insert,
    select,
    update,
)

from headrace.registry.storage.stored import Change
from headrace.storage.tables import changes

MAX_CHANGES = 1000  # of one server; those that still run are kept beyond it

# Built once, as the others that a swap executes: that takes longer than to execute them.
_INSERT = insert(changes)


class History:
    """Every change of one server that is not too long ago."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._is_ours: ColumnElement[bool] = changes.c.server == server
        self._is_running: ColumnElement[bool] = changes.c.outcome == "running"
        self._forget_old = self._delete_old()

    def begin(self, connection: Connection, **values: object) -> int:
        return self.add(connection, outcome="running", **values)

    def add(self, connection: Connection, **values: object) -> int:
        """A change with all that is known of it; the answer is its id."""
        row = {"server": self._server, **values}
        key = connection.execute(_INSERT, row).inserted_primary_key
        assert key is not None
        connection.execute(self._forget_old, {"max_changes": MAX_CHANGES})
        return int(key[0])

    def end(self, connection: Connection, change_id: int, **values: object) -> None:
        is_it = self._is_ours & (changes.c.id == change_id)
        ended = connection.execute(update(changes).where(is_it).values(values))
        assert ended.rowcount == 1, f"change {change_id} never began"

    def undo_running(self, connection: Connection) -> None:
        """Mark what was amid its change when the server ended."""
        is_left = self._is_ours & self._is_running
        outcomes = {"unload": "done", "load": "running"}  # written off at once; goes on
        outcome = case(outcomes, value=changes.c.kind, else_="undone")
        connection.execute(update(changes).where(is_left).values(outcome=outcome))

    def running_loads(self, connection: Connection) -> dict[str, int]:
        is_load = self._is_ours & self._is_running & (changes.c.kind == "load")
        found = connection.execute(select(changes.c.active, changes.c.id).where(is_load))
        return {row.active: row.id for row in found}

    def newest(self, connection: Connection, name: str | None, limit: int) -> list[Change]:
        is_wanted = self._is_ours if name is None else self._is_ours & (changes.c.name == name)
        wanted = select(changes).where(is_wanted).order_by(changes.c.id.desc()).limit(limit)
        return [_change(row) for row in connection.execute(wanted)]

    def _delete_old(self) -> Delete:
        newest_first = select(changes.c.id).where(self._is_ours).order_by(changes.c.id.desc())
        too_old = newest_first.offset(bindparam("max_changes")).limit(1).scalar_subquery()
        is_over = changes.c.outcome != "running"
        return delete(changes).where(self._is_ours, is_over, changes.c.id <= too_old)


def _change(row: Row[Any]) -> Change:
    values = row._asdict()
    del values["server"]
    return Change(**values)
