"""Opens the database, brings its schema to head and speaks of its faults in one sentence.

Knows SQLite from PostgreSQL, so that nobody else has to; knows no model.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    QueuePool,
    create_engine,
    delete,
    event,
    false,
    insert,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from headrace.errors import ConfigurationError, UnavailableError
from headrace.storage.tables import HEAD, metadata, schema

log = structlog.get_logger("headrace.storage")

SETTING = "storage.database_url"
DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
RETRY_AFTER = 10.0  # seconds; a disk is full and a database is away for longer than a moment
LOCK_TIMEOUT = 5.0  # seconds; servers that share a file hold it for milliseconds
PRIMARY_CODE = 0xFF  # of SQLite's error codes; what is above tells the kind of it
OPTIONS: dict[str, dict[str, Any]] = {
    "sqlite": {"connect_args": {"timeout": LOCK_TIMEOUT, "check_same_thread": False}},
    "postgresql": {
        # A server that does not answer must not hold ours for ever: seconds, then milliseconds.
        # Prepared statements do not survive a pooler between us and the database.
        "connect_args": {
            "connect_timeout": 5,
            "tcp_user_timeout": 10_000,
            "prepare_threshold": None,
        },
        "pool_pre_ping": True,  # it may have been restarted since the last change
    },
}
MIGRATION_LOCK = 0x68656164  # any number that no other application locks


def open_database(database_url: str) -> Engine:
    """Raise ConfigurationError, with one line for the operator, when it cannot be used."""
    url = _parse(database_url)
    try:
        _make_folder(url)
        engine = _connect_lazily(url)
        try:
            with engine.begin() as connection:
                _bring_to_head(connection)
                connection.execute(delete(schema).where(false()))  # refused where none may write
        except BaseException:
            engine.dispose()
            raise
    except (SQLAlchemyError, OSError) as error:
        raise _unusable(f"cannot use {_shown(url)}: {_reason(error)}.") from None
    return engine


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """All of the block or nothing of it; an UnavailableError when the database fails."""
    try:
        with engine.begin() as connection:
            yield connection
    except SQLAlchemyError as error:
        # It may name hosts and users: for the log, and not for whoever asked.
        log.error(  # noqa: TRY400 - the sentence is all there is to know
            "database.failed", reason=_reason(error)
        )
        raise UnavailableError(
            "what the server remembers cannot be stored; the server's log says why",
            retry_after=RETRY_AFTER,
        ) from None


def _parse(database_url: str) -> URL:
    try:
        url = make_url(database_url)
        return url.set(drivername=DRIVERS[url.drivername])
    except (ArgumentError, ValueError, KeyError):  # its value may hold a password
        raise _unusable(
            "is neither `sqlite:///FILE` nor `postgresql://USER@HOST/DATABASE`."
        ) from None


def _connect_lazily(url: URL) -> Engine:
    backend = url.get_backend_name()
    try:
        # The one connection is also what keeps a database in memory alive.
        engine = create_engine(
            url, poolclass=QueuePool, pool_size=1, max_overflow=0, **OPTIONS[backend]
        )
    except ImportError:
        raise _unusable("PostgreSQL needs `pip install headrace[postgres]`.") from None
    if backend == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the module would begin late; we begin ourselves
    # A swap that was answered also outlives a power cut: swaps are rare, and this takes 2 ms.
    connection.execute("PRAGMA synchronous = FULL")
    _use_write_ahead_log(connection)


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Who reads a shared file then does not wait for who writes.

    SQLite fails at once where others ask for the same at this moment, so the wait is ours.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & PRIMARY_CODE == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    # Who reads first and writes later may find that another has written, and fail without a wait.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _bring_to_head(connection: Connection) -> None:
    """Others may start at the same moment: one does it, the rest wait."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
    if not inspect(connection).has_table(schema.name):
        metadata.create_all(connection, checkfirst=False)
        connection.execute(insert(schema).values(version_num=HEAD))
        return
    revision = connection.execute(select(schema.c.version_num)).scalar()
    if revision != HEAD:
        _migrate(connection, revision)


def _migrate(connection: Connection, revision: str | None) -> None:
    from headrace.storage.migrations import upgrade  # noqa: PLC0415 - alembic; rarely needed

    if revision is not None and revision not in upgrade.known_revisions():
        message = f"was written by a newer Headrace: its schema is {revision}, ours is {HEAD}."
        raise _unusable(message)
    upgrade.upgrade(connection)


def _make_folder(url: URL) -> None:
    if url.get_backend_name() == "sqlite" and url.database and "uri" not in url.query:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)


def _shown(url: URL) -> str:
    """Without password; a query may hold one as well."""
    plain = url.set(drivername=url.get_backend_name(), query={})
    return plain.render_as_string(hide_password=True)


def _reason(error: Exception) -> str:
    """What the database itself said, without the statement and the links that surround it."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(cause).strip().partition("\n")[0].rstrip(".")


def _unusable(message: str) -> ConfigurationError:
    return ConfigurationError(f"{SETTING}: {message}", param=SETTING)
