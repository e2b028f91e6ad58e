"""Databases of either kind, for whatever test asks for one by name."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest


def postgres_programs() -> Path | None:
    """The folder of initdb and postgres, which Debian keeps off the PATH."""
    on_path = [Path(found).resolve().parent for found in [shutil.which("postgres")] if found]
    for folder in [*on_path, *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]:
        if (folder / "initdb").exists():
            return folder
    return None


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a real PostgreSQL, without a database's name."""
    if (programs := postgres_programs()) is None:
        pytest.skip("there is no PostgreSQL on this machine")
    folder = Path(tempfile.mkdtemp(prefix="headrace-pg-"))  # short: a socket lies in it
    user = "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
    if user:
        shutil.chown(folder, user)
    common: dict[str, Any] = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL}
    data = str(folder / "data")
    control = [programs / "pg_ctl", "-D", data]
    start = ("-o", f"-c listen_addresses='' -c fsync=off -k {folder}", "-l", f"{folder}/log")
    try:
        initdb = [programs / "initdb", "-D", data, "-U", "headrace", "-A", "trust", "--no-sync"]
        subprocess.run(initdb, check=True, **common)
        subprocess.run(
            [programs / "pg_ctl", "-D", data, *start, "-w", "start"], check=True, **common
        )
        yield f"postgresql://headrace@/{{}}?host={folder}"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=False, **common)
        shutil.rmtree(folder)


@pytest.fixture
def new_postgres(postgres: str) -> str:
    with psycopg.connect(postgres.format("postgres"), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS rows WITH (FORCE)")
        connection.execute("CREATE DATABASE rows")
    return postgres.format("rows")


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/a folder/headrace.db"


@pytest.fixture(params=["file", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    kept = {"file": "file_url", "postgresql": "new_postgres"}
    answer: str = request.getfixturevalue(kept[request.param])
    return answer
