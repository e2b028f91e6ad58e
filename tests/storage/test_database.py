import sys
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Table, insert, select
from structlog.testing import capture_logs

from headrace.errors import ConfigurationError
from headrace.storage.database import open_database, transaction
from headrace.storage.migrations.upgrade import _config, known_revisions, upgrade
from headrace.storage.tables import HEAD, changes, metadata, models, rollouts, schema, versions

MODEL = {"server": "s", "name": "chat", "declaration": "d", "active": 2, "previous": None}
VERSION = {
    "server": "s",
    "name": "chat",
    "version": 2,
    "spec": "{}",
    "state": "ready",
    "is_declared": True,
    "reason": "½",
}
CHANGE = {
    "id": 1,
    "server": "s",
    "kind": "swap",
    "name": "chat",
    "previous": None,
    "active": "chat@2",
    "who": "http",
    "started_at": 1.5,
    "ended_at": None,
    "outcome": "running",
    "detail": None,
}
ROLLOUT = {
    "server": "s",
    "id": "r",
    "name": "chat",
    "state": "running",
    "record": "{}",
    "created_at": 1.0,
    "ended_at": None,
}
ROWS = [(models, MODEL), (versions, VERSION), (changes, CHANGE)]


def rows(connection: Connection, table: Table) -> list[dict[str, object]]:
    return [dict(row) for row in connection.execute(select(table)).mappings()]


def bring_to(connection: Connection, revision: str) -> None:
    """As a release that knew no later one made it."""
    metadata.drop_all(connection)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


# Opening


def test_a_postgresql_that_was_restarted_is_connected_to_again(new_postgres: str) -> None:
    engine = open_database(new_postgres)
    with psycopg.connect(new_postgres, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND datname = 'rows'"
        )
    with transaction(engine) as connection:
        assert rows(connection, models) == []
    engine.dispose()


@pytest.mark.parametrize(
    ("database_url", "sentence"),
    [
        ("headrace.db", "neither `sqlite:///FILE` nor"),
        ("mysql://root:hunter2@localhost/x", "neither `sqlite:///FILE` nor"),
        ("postgresql+asyncpg://root:hunter2@localhost/x", "neither `sqlite:///FILE` nor"),
        ("postgresql://root:hunter2@localhost:port/x", "neither `sqlite:///FILE` nor"),
        ("sqlite:////proc/nothing/headrace.db", "No such file or directory"),
        ("sqlite:////", "unable to open database file"),
        ("postgresql://root:hunter2@127.0.0.1:1/x?sslpassword=hunter2", "refused"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line_without_a_password(
    database_url: str, sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"^storage.database_url: ") as caught:
        open_database(database_url)
    assert sentence in caught.value.message
    assert caught.value.param == "storage.database_url"
    assert "hunter2" not in caught.value.message
    assert "\n" not in caught.value.message


def test_a_database_that_cannot_be_written_stops_the_start(file_url: str) -> None:
    open_database(file_url).dispose()
    path = file_url.removeprefix("sqlite:///")
    with pytest.raises(ConfigurationError, match="readonly database"):
        open_database(f"sqlite:///file:{path}?mode=ro&uri=true")


def test_a_file_that_is_no_database_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database " * 100)
    with pytest.raises(ConfigurationError, match="file is not a database"):
        open_database(f"sqlite:///{tmp_path}/notes.txt")


def test_without_psycopg_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"pip install headrace\[postgres\]"):
        open_database("postgres://root@localhost/x")


# The schema


def test_the_tables_are_what_the_migrations_make(database_url: str) -> None:
    engine = open_database(database_url)
    with engine.begin() as connection:
        metadata.drop_all(connection)
        upgrade(connection)
        context = MigrationContext.configure(connection, opts={"version_table": schema.name})
        assert compare_metadata(context, metadata) == []
        assert connection.execute(schema.select()).scalars().all() == [HEAD]
    engine.dispose()


@pytest.mark.parametrize("older", sorted(known_revisions() - {HEAD}))
def test_a_database_of_an_older_release_keeps_its_rows_and_gets_the_new_tables(
    database_url: str, older: str
) -> None:
    engine = open_database(database_url)
    with engine.begin() as connection:
        bring_to(connection, older)
        for table, row in ROWS:
            connection.execute(insert(table).values(row))
    engine.dispose()
    with capture_logs() as lines:
        engine = open_database(database_url)
    assert [(line["event"], line["schema"]) for line in lines] == [("store.upgraded", HEAD)]
    with transaction(engine) as connection:
        connection.execute(insert(rollouts).values(ROLLOUT))
    with transaction(engine) as connection:
        for table, row in [*ROWS, (rollouts, ROLLOUT)]:
            assert rows(connection, table) == [row]
    engine.dispose()


def test_a_database_whose_migration_never_began_is_brought_to_head(database_url: str) -> None:
    engine = open_database(database_url)
    with engine.begin() as connection:
        metadata.drop_all(connection)
        schema.create(connection)
    engine.dispose()
    engine = open_database(database_url)
    with transaction(engine) as connection:
        assert rows(connection, rollouts) == []
    engine.dispose()


def test_a_database_of_a_newer_release_is_left_alone(database_url: str) -> None:
    engine = open_database(database_url)
    with engine.begin() as connection:
        connection.execute(schema.delete())
        connection.execute(insert(schema).values(version_num="999"))
    engine.dispose()
    with pytest.raises(
        ConfigurationError, match=f"newer Headrace: its schema is 999, ours is {HEAD}"
    ):
        open_database(database_url)


def test_head_is_the_newest_migration() -> None:
    assert max(known_revisions()) == HEAD
