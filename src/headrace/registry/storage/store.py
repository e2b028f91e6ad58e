"""What a server remembers over restarts: versions, pointers and history. Decides nothing.

Every method is one transaction and blocks. Servers may share a database: each sees its own rows.
"""

from collections import defaultdict
from typing import Any

import msgspec
import structlog
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Table,
    bindparam,
    case,
    delete,
    insert,
    select,
    update,
)

from headrace.registry.storage.history import History
from headrace.registry.storage.stored import (
    Change,
    ChangeKind,
    Outcome,
    StoredModel,
    StoredState,
    StoredVersion,
    declaration_digest,
    spec_from_json,
    spec_to_json,
)
from headrace.storage.database import open_database, transaction
from headrace.storage.tables import models, schema, versions

__all__ = [
    "Change",
    "ChangeKind",
    "Outcome",
    "Store",
    "StoredModel",
    "StoredState",
    "StoredVersion",
    "declaration_digest",
]

log = structlog.get_logger("headrace.registry")

# What moves a pointer, built once: building these takes longer than executing them.
_TO_ACTIVE = versions.c.version == bindparam("to_active")
_POINT = (
    update(models)
    .where(models.c.server == bindparam("of_server"), models.c.name == bindparam("of_name"))
    .values(active=bindparam("to_active"), previous=bindparam("to_previous"))
)
_SET_STATES = (
    update(versions)
    .where(versions.c.server == bindparam("of_server"), versions.c.name == bindparam("of_name"))
    .where(_TO_ACTIVE | (versions.c.version == bindparam("to_previous")))
    .values(state=case((_TO_ACTIVE, "ready"), else_="deprecated"))
)


class Store:
    """The rows of one server, which its address names."""

    def __init__(self, database_url: str, server: str) -> None:
        self._engine = open_database(database_url)
        self._server = server
        self._history = History(server)

    def read(self) -> list[StoredModel]:
        """Begin a life: what was amid a change at the end of the last one is marked undone.

        But for loads, which go on: see `running_loads`.
        """
        with transaction(self._engine) as connection:
            self._history.undo_running(connection)
            named = select(models).where(self._ours(models)).order_by(models.c.name)
            rows = connection.execute(named).all()
            read = self._read_versions(connection)
        return [_model(row, read[row.name]) for row in rows]

    def running_loads(self) -> dict[str, int]:
        """Loads that had not ended when the server did: model ids with the ids of the changes."""
        with transaction(self._engine) as connection:
            return self._history.running_loads(connection)

    def save_model(self, model: StoredModel) -> None:
        """Replace everything of that name but its history."""
        with transaction(self._engine) as connection:
            self._forget(connection, model.name)
            connection.execute(
                insert(models).values(
                    server=self._server,
                    name=model.name,
                    declaration=model.declaration,
                    active=model.active,
                    previous=model.previous,
                )
            )
            for version in model.versions:
                self._insert_version(connection, model.name, version)

    def save_version(self, name: str, version: StoredVersion) -> None:
        """Add it to a model that is there, or replace it."""
        with transaction(self._engine) as connection:
            known = select(models.c.name).where(self._named(models, name))
            assert connection.execute(known).first() is not None, f"{name} was never saved"
            self._replace_version(connection, name, version)

    def remove_version(self, name: str, version: int) -> None:
        with transaction(self._engine) as connection:
            connection.execute(delete(versions).where(self._is(name, version)))
            # A later version of that number is another one, and no pointer may lead to it.
            for pointer in (models.c.active, models.c.previous):
                leads_there = self._named(models, name) & (pointer == version)
                connection.execute(update(models).where(leads_there).values({pointer: None}))
            left = select(versions.c.version).where(self._named(versions, name))
            if connection.execute(left).first() is None:
                self._forget_undeclared(connection, name)

    def forget_model(self, name: str) -> None:
        """All but its history."""
        with transaction(self._engine) as connection:
            self._forget(connection, name)

    def begin(
        self,
        kind: ChangeKind,
        name: str,
        *,
        previous: str | None,
        active: str | None,
        who: str,
        now: float,
    ) -> int:
        """Note a change before it is made; the answer is its id."""
        words = {"kind": kind, "name": name, "previous": previous, "active": active}
        with transaction(self._engine) as connection:
            return self._history.begin(connection, **words, who=_storable(who), started_at=now)

    def activate(
        self,
        name: str,
        version: StoredVersion,
        *,
        previous: int | None,
        change_id: int,
        now: float,
    ) -> None:
        """Save a version, move the pointer to it and end the change with that."""
        with transaction(self._engine) as connection:
            self._replace_version(connection, name, version)
            self._point(connection, name, version.spec.version, previous)
            self._history.end(connection, change_id, outcome="done", ended_at=now)

    def move(
        self,
        kind: ChangeKind,
        name: str,
        *,
        active: int,
        previous: int | None,
        who: str,
        now: float,
    ) -> None:
        """Move the pointer, a change that begins and ends with that."""
        words = {
            "kind": kind,
            "name": name,
            "previous": None if previous is None else f"{name}@{previous}",
            "active": f"{name}@{active}",
            "who": _storable(who),
        }
        with transaction(self._engine) as connection:
            self._history.add(connection, **words, outcome="done", started_at=now, ended_at=now)
            self._point(connection, name, active, previous)

    def end(self, change_id: int, outcome: Outcome, *, detail: str | None, now: float) -> None:
        words = _storable(detail)
        with transaction(self._engine) as connection:
            self._history.end(connection, change_id, outcome=outcome, ended_at=now, detail=words)

    def history(self, name: str | None, limit: int) -> list[Change]:
        """Newest first."""
        with transaction(self._engine) as connection:
            return self._history.newest(connection, name, limit)

    def try_to_write(self) -> None:
        """Raise when nothing could be stored now; changes nothing."""
        with transaction(self._engine) as connection:
            connection.execute(update(schema).values(version_num=schema.c.version_num))

    def close(self) -> None:
        self._engine.dispose()

    # Rows of this server

    def _ours(self, table: Table) -> ColumnElement[bool]:
        return table.c.server == self._server

    def _named(self, table: Table, name: str) -> ColumnElement[bool]:
        return self._ours(table) & (table.c.name == name)

    def _is(self, name: str, version: int) -> ColumnElement[bool]:
        return self._named(versions, name) & (versions.c.version == version)

    # Parts of a transaction

    def _read_versions(self, connection: Connection) -> defaultdict[str, list[StoredVersion]]:
        ordered = select(versions).where(self._ours(versions)).order_by(versions.c.version)
        read = defaultdict(list)
        for row in connection.execute(ordered):
            if (version := _version(row)) is not None:
                read[row.name].append(version)
        return read

    def _forget(self, connection: Connection, name: str) -> None:
        for table in (models, versions):
            connection.execute(delete(table).where(self._named(table, name)))

    def _forget_undeclared(self, connection: Connection, name: str) -> None:
        """One that is declared must be known to have been unloaded."""
        is_loaded_only = self._named(models, name) & (models.c.declaration == "")
        connection.execute(delete(models).where(is_loaded_only))

    def _replace_version(self, connection: Connection, name: str, version: StoredVersion) -> None:
        connection.execute(delete(versions).where(self._is(name, version.spec.version)))
        self._insert_version(connection, name, version)

    def _insert_version(self, connection: Connection, name: str, version: StoredVersion) -> None:
        connection.execute(
            insert(versions).values(
                server=self._server,
                name=name,
                version=version.spec.version,
                spec=spec_to_json(version.spec),
                state=version.state,
                is_declared=version.is_declared,
                reason=_storable(version.reason),
            )
        )

    def _point(self, connection: Connection, name: str, active: int, previous: int | None) -> None:
        words = {
            "of_server": self._server,
            "of_name": name,
            "to_active": active,
            "to_previous": previous,
        }
        assert connection.execute(_POINT, words).rowcount == 1, f"{name} was never saved"
        connection.execute(_SET_STATES, words)


def _model(row: Row[Any], read: list[StoredVersion]) -> StoredModel:
    """A pointer to a version that cannot be read is read as nothing, too."""
    numbers = {version.spec.version for version in read}
    return StoredModel(
        name=row.name,
        declaration=row.declaration,
        active=row.active if row.active in numbers else None,
        previous=row.previous if row.previous in numbers else None,
        versions=tuple(read),
    )


def _version(row: Row[Any]) -> StoredVersion | None:
    """None for what another release wrote; its row stays for a release that can read it."""
    try:
        spec = spec_from_json(row.spec)
    except msgspec.DecodeError as error:
        model_id = f"{row.name}@{row.version}"
        log.warning("store.version_unreadable", model_id=model_id, reason=str(error))
        return None
    return StoredVersion(spec=spec, state=row.state, is_declared=row.is_declared, reason=row.reason)


def _storable(words: str | None) -> str | None:
    """What a worker said last may hold what a database refuses: a NUL, half a character."""
    if words is None:
        return None
    return words.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
