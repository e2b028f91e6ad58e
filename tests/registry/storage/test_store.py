import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import text, update
from structlog.testing import capture_logs

from headrace.engine.config import EngineConfig
from headrace.errors import HeadraceError
from headrace.executors.config import ExecutorConfig
from headrace.registry.spec import GoldenCase, ModelSpec
from headrace.registry.storage import history
from headrace.registry.storage.store import Store
from headrace.registry.storage.stored import (
    Change,
    StoredModel,
    StoredVersion,
    declaration_digest,
    spec_from_json,
    spec_to_json,
)
from headrace.storage.tables import versions

SERVER = "127.0.0.1:8000"
OTHER = "127.0.0.1:8001"


def version(number: int, *, name: str = "chat", **changes: Any) -> StoredVersion:
    declared = StoredVersion(
        spec=ModelSpec(name=name, source="smollm2", version=number), state="ready", is_declared=True
    )
    return replace(declared, **changes)


CHAT = StoredModel(
    name="chat",
    declaration="d1",
    active=1,
    previous=None,
    versions=(
        version(1),
        StoredVersion(
            spec=ModelSpec(
                name="chat",
                source="file.gguf",
                version=2,
                engine=EngineConfig(max_num_seqs=3),
                executor=ExecutorConfig(precision="bf16", cache_dir=Path("/var/cache/x")),
                replicas=2,
                retain="cold",
                idle_unload_after=60.5,
                golden=(GoldenCase(prompt="2+2=", expected="4"),),
            ),
            state="failed",
            is_declared=False,
            reason="the worker was killed by SIGKILL",
        ),
    ),
)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store(database_url, SERVER)
    yield store
    store.close()


def reopened(store: Store, database_url: str) -> Store:
    store.close()
    return Store(database_url, SERVER)


def begin(store: Store, name: str = "chat", now: float = 1.0) -> int:
    return store.begin("swap", name, previous="chat@1", active="chat@2", who="http ::1", now=now)


# What is kept


def test_a_model_comes_back_as_it_was_saved(store: Store, database_url: str) -> None:
    store.save_model(CHAT)
    store = reopened(store, database_url)
    assert store.read() == [CHAT]
    store.close()


def test_a_database_in_memory_serves_another_thread() -> None:
    store = Store("sqlite://", SERVER)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(store.save_model, CHAT).result()
    assert store.read() == [CHAT]
    store.close()


def test_saving_a_model_replaces_all_of_that_name_and_leaves_its_history(store: Store) -> None:
    store.save_model(CHAT)
    change_id = begin(store)
    smaller = replace(CHAT, declaration="d2", versions=(version(1),))
    store.save_model(smaller)
    assert store.read() == [smaller]
    assert [change.id for change in store.history("chat", 10)] == [change_id]


def test_versions_come_and_go_one_by_one(store: Store) -> None:
    store.save_model(CHAT)
    added = version(3, is_declared=False, state="loading")
    store.save_version("chat", added)
    store.remove_version("chat", 2)
    assert store.read()[0].versions == (CHAT.versions[0], added)
    store.save_version("chat", replace(added, state="ready"))
    assert store.read()[0].versions[1].state == "ready"


def test_no_pointer_leads_to_a_later_version_of_a_number_that_was_removed(store: Store) -> None:
    store.save_model(replace(CHAT, active=2, previous=1))
    store.remove_version("chat", 1)
    store.save_version("chat", version(1))
    assert (store.read()[0].active, store.read()[0].previous) == (2, None)


def test_a_forgotten_model_is_gone_and_its_history_is_not(store: Store) -> None:
    store.save_model(CHAT)
    store.save_model(replace(CHAT, name="vision", versions=(version(1, name="vision"),)))
    begin(store)
    store.forget_model("chat")
    assert [model.name for model in store.read()] == ["vision"]
    assert len(store.history("chat", 10)) == 1


def test_activating_moves_pointer_and_states_and_ends_the_change(store: Store) -> None:
    store.save_model(CHAT)
    change_id = begin(store, now=1.5)
    store.activate("chat", version(2), previous=1, change_id=change_id, now=2.25)
    [model] = store.read()
    assert (model.active, model.previous) == (2, 1)
    assert [each.state for each in model.versions] == ["deprecated", "ready"]
    assert store.history(None, 1) == [
        Change(
            id=change_id,
            kind="swap",
            name="chat",
            previous="chat@1",
            active="chat@2",
            who="http ::1",
            started_at=1.5,
            ended_at=2.25,
            outcome="done",
            detail=None,
        )
    ]


def test_what_cannot_be_activated_changes_nothing(store: Store) -> None:
    store.save_model(CHAT)
    with pytest.raises(AssertionError):
        store.activate("chat", version(3), previous=1, change_id=77, now=2.0)
    assert store.read() == [CHAT]


def test_a_version_of_a_model_that_was_never_saved_is_a_fault(store: Store) -> None:
    with pytest.raises(AssertionError):
        store.save_version("chat", version(1))


def test_a_change_that_ran_when_the_server_ended_is_undone(store: Store, database_url: str) -> None:
    running, failed = begin(store), begin(store)
    store.end(failed, "failed", detail="out of \0 \udcff memory", now=3.0)
    store = reopened(store, database_url)
    store.read()
    newest, oldest = store.history(None, 10)
    assert (newest.id, newest.outcome, newest.ended_at) == (failed, "failed", 3.0)
    assert newest.detail == "out of \ufffd ? memory"
    assert (oldest.id, oldest.outcome, oldest.ended_at) == (running, "undone", None)
    store.close()


def test_history_is_of_a_name_and_newest_first(store: Store) -> None:
    ids = [begin(store, name) for name in ("chat", "vision", "chat", "chat")]
    assert [each.id for each in store.history("chat", 2)] == [ids[3], ids[2]]
    assert [each.id for each in store.history(None, 10)] == ids[::-1]


def test_history_keeps_the_newest_and_those_that_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_CHANGES", 3)
    running = begin(store)
    ids = [begin(store) for _ in range(5)]
    for each in ids:
        store.end(each, "done", detail=None, now=2.0)
    last = begin(store)
    assert [each.id for each in store.history(None, 10)] == [last, ids[4], ids[3], running]


def test_servers_that_share_a_database_see_their_own(store: Store, database_url: str) -> None:
    other = Store(database_url, OTHER)
    store.save_model(CHAT)
    other.save_model(replace(CHAT, active=2))
    ours, theirs = begin(store), begin(other)
    assert (store.read()[0].active, other.read()[0].active) == (1, 2)
    assert [each.id for each in store.history(None, 10)] == [ours]
    with pytest.raises(AssertionError):
        store.end(theirs, "done", detail=None, now=1.0)
    other.forget_model("chat")
    assert store.read() == [CHAT]
    other.close()


def test_servers_that_start_and_write_at_once_do_not_hinder_each_other(database_url: str) -> None:
    num_servers = 4
    barrier = Barrier(num_servers)

    def live(number: int) -> list[StoredModel]:
        barrier.wait()
        store = Store(database_url, f"127.0.0.1:{number}")
        for active in (1, 2) * 3:
            store.save_model(replace(CHAT, active=active))
            change_id = begin(store)
            ready = version(active)
            store.activate("chat", ready, previous=None, change_id=change_id, now=1.0)
        models = store.read()
        store.close()
        return models

    with ThreadPoolExecutor(num_servers) as threads:
        for models in threads.map(live, range(num_servers)):
            assert models[0].active == 2


def test_an_unreadable_version_is_read_as_nothing_and_kept(store: Store) -> None:
    store.save_model(replace(CHAT, active=2, previous=1))
    of_a_newer_release = update(versions).values(spec='{"name": "chat", "source": 5}')
    with store._engine.begin() as connection:
        connection.execute(of_a_newer_release.where(versions.c.version == 2))
    with capture_logs() as lines:
        [model] = store.read()
    assert (model.active, model.previous, model.versions) == (None, 1, CHAT.versions[:1])
    assert [(line["event"], line["model_id"]) for line in lines] == [
        ("store.version_unreadable", "chat@2")
    ]
    with store._engine.begin() as connection:
        assert len(connection.execute(versions.select()).all()) == 2


# Sudden ends

LIFE = """
import os, signal, sys
from sqlalchemy import event
from headrace.registry.spec import ModelSpec
from headrace.registry.storage.store import Store
from headrace.registry.storage.stored import StoredVersion
chat_2 = StoredVersion(
    spec=ModelSpec(name="chat", source="smollm2", version=2), state="ready", is_declared=True
)
store = Store(sys.argv[1], "127.0.0.1:8000")
change = store.begin("swap", "chat", previous="chat@1", active="chat@2", who="http", now=1.0)
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
"""
ACTIVATE = "store.activate('chat', chat_2, previous=1, change_id=change, now=2.0);"


@pytest.mark.parametrize(
    ("end", "active", "outcome"),
    [
        pytest.param(ACTIVATE + "die()", 2, "done", id="after the pointer has moved"),
        pytest.param(
            f"event.listen(store._engine, 'commit', die);{ACTIVATE}",
            1,
            "undone",
            id="before it is told",
        ),
        pytest.param("die()", 1, "undone", id="amid the change"),
    ],
)
def test_a_server_that_is_killed_comes_back_whole(
    store: Store, database_url: str, end: str, active: int, outcome: str
) -> None:
    store.save_model(CHAT)
    store.close()
    killed = subprocess.run([sys.executable, "-c", LIFE + end, database_url], check=False)
    assert killed.returncode == -signal.SIGKILL
    store = Store(database_url, SERVER)
    assert store.read()[0].active == active
    assert [change.outcome for change in store.history(None, 10)] == [outcome]
    store.close()


# Faults


def test_a_full_disk_is_told_in_one_sentence_and_changes_nothing(file_url: str) -> None:
    store = Store(file_url, SERVER)
    store.save_model(CHAT)
    with store._engine.begin() as connection:
        connection.execute(text("PRAGMA max_page_count = 1"))
    with pytest.raises(HeadraceError, match="cannot be stored"), capture_logs() as lines:
        store.save_version("chat", version(3, reason="x" * 100_000))
    assert [line["reason"] for line in lines] == ["database or disk is full"]
    assert store.read() == [CHAT]
    store.close()


def test_a_locked_database_is_told_in_one_sentence(file_url: str) -> None:
    store = Store(file_url, SERVER)
    with store._engine.begin() as connection:
        connection.execute(text("PRAGMA busy_timeout = 20"))
    holder = sqlite3.connect(file_url.removeprefix("sqlite:///"), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(HeadraceError, match="cannot be stored"), capture_logs() as lines:
        store.save_model(CHAT)
    assert [line["reason"] for line in lines] == ["database is locked"]
    holder.close()
    store.save_model(CHAT)
    store.close()


def test_a_start_imports_no_orm_and_no_alembic(tmp_path: Path) -> None:
    code = f"""
import sys
import headrace.registry.storage.stored
assert "sqlalchemy" not in sys.modules
from headrace.registry.storage.store import Store
for _ in range(2):
    store = Store("sqlite:///{tmp_path}/x.db", "127.0.0.1:8000")
    store.read()
    store.close()
print(*{{"sqlalchemy.orm", "alembic", "psycopg"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# Digests and specs

specs = st.builds(
    ModelSpec,
    name=st.sampled_from(["chat", "vision"]),
    source=st.text(),
    version=st.integers(1, 5),
    engine=st.builds(EngineConfig, max_num_seqs=st.integers(1, 99)),
    executor=st.builds(
        ExecutorConfig,
        kv_cache_memory=st.none() | st.integers(1, 2**40),
        cache_dir=st.none() | st.just(Path("/a/b")),
    ),
    replicas=st.integers(1, 64),
    retain=st.sampled_from(["warm", "cold", "none"]),
    idle_unload_after=st.none() | st.floats(0.001, 1e9),
    golden=st.lists(st.builds(GoldenCase, prompt=st.text(), expected=st.text())).map(tuple),
)


@given(specs)
def test_a_spec_outlives_being_json(spec: ModelSpec) -> None:
    assert spec_from_json(spec_to_json(spec)) == spec


@given(st.lists(specs, max_size=4), st.lists(specs, max_size=4))
def test_digests_are_equal_for_the_same_declarations_in_any_order(
    one: list[ModelSpec], other: list[ModelSpec]
) -> None:
    assert declaration_digest(one) == declaration_digest(reversed(one))
    are_same = sorted(map(repr, one)) == sorted(map(repr, other))
    assert (declaration_digest(one) == declaration_digest(other)) == are_same


def test_a_digest_is_the_same_in_every_process_and_when_a_setting_is_added() -> None:
    # This number may change only where the meaning of a declaration does.
    spec = ModelSpec(name="chat", source="smollm2", engine=EngineConfig(max_num_seqs=8))
    assert declaration_digest([spec]) == (
        "8a0a195394657b1b82ab0d59cb59c55dfff41fafba4e75a706d1b940240507d3"
    )


# Any order of calls

NAMES = ("chat", "vision")
NUMBERS = (1, 2, 3)
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
names, numbers = st.sampled_from(NAMES), st.sampled_from(NUMBERS)
states = st.sampled_from(["loading", "ready", "deprecated", "failed"])


@st.composite
def stored_versions(draw: st.DrawFn, name: str, number: int) -> StoredVersion:
    spec = replace(draw(specs), name=name, version=number)
    reason = draw(st.none() | st.text())
    safe = reason and reason.replace("\0", "\ufffd")
    return StoredVersion(
        spec=spec, state=draw(states), is_declared=draw(st.booleans()), reason=safe
    )


@st.composite
def stored_models(draw: st.DrawFn) -> StoredModel:
    name = draw(names)
    held = sorted(draw(st.sets(numbers)))
    pointers = st.sampled_from([None, *held])
    return StoredModel(
        name=name,
        declaration=draw(st.text("0123456789abcdef", max_size=4)),
        active=draw(pointers),
        previous=draw(pointers),
        versions=tuple(draw(stored_versions(name, number)) for number in held),
    )


class StoreAgainstDict(RuleBasedStateMachine):
    """The store beside what a dict and a list would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.url = f"sqlite:///{self.folder.name}/x.db"
        self.store = Store(self.url, SERVER)
        self.models: dict[str, StoredModel] = {}
        self.changes: list[Change] = []

    @initialize()
    def another_server_was_there(self) -> None:
        other = Store(self.url, OTHER)
        other.save_model(CHAT)
        begin(other)
        other.close()

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule(model=stored_models())
    def save_model(self, model: StoredModel) -> None:
        self.store.save_model(model)
        self.models[model.name] = model

    @precondition(lambda self: self.models)
    @rule(data=st.data(), number=numbers)
    def save_version(self, data: st.DataObject, number: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.models)))
        saved = data.draw(stored_versions(name, number))
        self.store.save_version(name, saved)
        self._hold(name, {**self._held(name), number: saved})

    @rule(name=names, number=numbers)
    def remove_version(self, name: str, number: int) -> None:
        self.store.remove_version(name, number)
        if (model := self.models.get(name)) is not None:
            self.models[name] = replace(
                model,
                active=None if model.active == number else model.active,
                previous=None if model.previous == number else model.previous,
            )
            self._hold(name, {n: v for n, v in self._held(name).items() if n != number})
            if not self.models[name].declaration and not self.models[name].versions:
                del self.models[name]  # of one that is declared it is known that it was unloaded

    @rule(name=names)
    def forget_model(self, name: str) -> None:
        self.store.forget_model(name)
        self.models.pop(name, None)

    @rule(name=names, who=words, now=st.floats(0, 1e12))
    def begin(self, name: str, who: str, now: float) -> None:
        change_id = self.store.begin(
            "load", name, previous=None, active=f"{name}@1", who=who, now=now
        )
        change = Change(
            id=change_id,
            kind="load",
            name=name,
            previous=None,
            active=f"{name}@1",
            who=who,
            started_at=now,
            ended_at=None,
            outcome="running",
            detail=None,
        )
        self.changes.append(change)

    @precondition(lambda self: self.changes)
    @rule(data=st.data(), detail=st.none() | st.just("why"))
    def end(self, data: st.DataObject, detail: str | None) -> None:
        index = data.draw(st.integers(0, len(self.changes) - 1))
        change = self.changes[index]
        self.store.end(change.id, "failed", detail=detail, now=5.0)
        self.changes[index] = replace(change, outcome="failed", ended_at=5.0, detail=detail)

    @precondition(lambda self: self.changes and any(each.versions for each in self.models.values()))
    @rule(data=st.data())
    def activate(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([n for n, m in self.models.items() if m.versions]))
        held = self._held(name)
        active = data.draw(st.sampled_from(sorted(held)))
        previous = data.draw(st.sampled_from([None, *(held.keys() - {active})]))
        index = data.draw(st.integers(0, len(self.changes) - 1))
        change = self.changes[index]
        ready = version(active, name=name)
        self.store.activate(name, ready, previous=previous, change_id=change.id, now=7.0)
        self.changes[index] = replace(change, outcome="done", ended_at=7.0)
        held[active] = ready
        if previous is not None:
            held[previous] = replace(held[previous], state="deprecated")
        self.models[name] = replace(self.models[name], active=active, previous=previous)
        self._hold(name, held)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = Store(self.url, SERVER)

    @rule()
    def read(self) -> None:
        assert self.store.read() == [self.models[name] for name in sorted(self.models)]
        after = {"load": "running", "unload": "done"}
        self.changes = [
            replace(each, outcome=after.get(each.kind, "undone"))
            if each.outcome == "running"
            else each
            for each in self.changes
        ]

    @invariant()
    def history_is_all_that_was_done(self) -> None:
        assert self.store.history(None, 10_000) == self.changes[::-1]
        chats = [each for each in self.changes if each.name == "chat"]
        assert self.store.history("chat", 2) == chats[::-1][:2]

    def _held(self, name: str) -> dict[int, StoredVersion]:
        return {each.spec.version: each for each in self.models[name].versions}

    def _hold(self, name: str, held: dict[int, StoredVersion]) -> None:
        ordered = tuple(held[number] for number in sorted(held))
        self.models[name] = replace(self.models[name], versions=ordered)


TestStoreAgainstDict = StoreAgainstDict.TestCase
TestStoreAgainstDict.settings = hypothesis.settings(
    max_examples=15, stateful_step_count=25, deadline=None
)
