import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import (
    ConflictError,
    DrainingError,
    ExperimentNotFoundError,
    FeedbackGivenError,
    InvalidRequestError,
    ModelNotFoundError,
    RequestNotFoundError,
    UnavailableError,
)
from headrace.routing.experiments import known
from headrace.routing.experiments.experiments import Experiments
from headrace.routing.experiments.plan import Plan, Variant
from headrace.routing.experiments.state import ExperimentState
from headrace.routing.observation import Observation
from routing.experiments.scripted_versions import ScriptedVersions


def plan(name: str = "chat", **fields: Any) -> Plan:
    variants = (Variant(f"{name}@1"), Variant(f"{name}@2"))
    known = {"variants": variants, "metric": "success", "min_samples": 20}
    return Plan(name=name, **{**known, **fields})


def seen(user: str, **fields: Any) -> Observation:
    known = {"failed": False, "ttft": 0.1, "latency": 1.0, "num_tokens": 10}
    return Observation(user=user, **{**known, **fields})


@pytest.fixture
def versions() -> ScriptedVersions:
    return ScriptedVersions()


@pytest.fixture
async def experiments(versions: ScriptedVersions) -> AsyncIterator[Experiments]:
    async with running(versions) as started:
        yield started


@asynccontextmanager
async def running(versions: ScriptedVersions, **options: Any) -> AsyncIterator[Experiments]:
    threads, tasks = threading.active_count(), own_tasks()
    experiments = Experiments(versions, **{"fresh_for": 0.0, **options})
    await experiments.start()
    try:
        yield experiments
    finally:
        await experiments.close()
        assert own_tasks() == tasks
        assert threading.active_count() <= threads


def own_tasks() -> int:
    return sum(task.get_name() == "experiments" for task in asyncio.all_tasks())


def nobody(_model_id: str) -> bool:
    return False


def control_fails(model_id: str) -> bool:
    return model_id == "chat@1"


def ask(experiments: Experiments, count: int, fails: Callable[[str], bool] = nobody) -> None:
    """Each user asks once; `fails` says of whom the answer fails, by version."""
    for i in range(count):
        user = f"user-{i}"
        model_id = experiments.choose("chat", user)
        assert model_id is not None
        failed = fails(model_id) and i % 2 == 0
        experiments.observe(model_id, f"request-{i}", seen(user, failed=failed))


async def until(
    experiments: Experiments, experiment_id: str, condition: Callable[[ExperimentState], bool]
) -> ExperimentState:
    async with asyncio.timeout(30):
        while not condition(state := await experiments.state(experiment_id)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return state


async def test_users_are_shared_out_and_keep_their_version(experiments: Experiments) -> None:
    assert experiments.choose("chat", "ann") is None
    state = await experiments.create(plan())
    assert (state.state, state.winner, state.ended_at) == ("running", None, None)
    assert state.waiting_for == "chat@1 has 0 of 20 samples of success"
    first = {f"{i}": experiments.choose("chat", f"{i}") for i in range(100)}
    assert set(first.values()) == {"chat@1", "chat@2"}
    assert first == {user: experiments.choose("chat", user) for user in first}
    assert experiments.choose("vision", "ann") is None
    assert experiments.choose("chat@2", "ann") is None


async def test_a_winner_is_found_and_stays_unpromoted(
    experiments: Experiments, versions: ScriptedVersions
) -> None:
    created = await experiments.create(plan())
    ask(experiments, 400, control_fails)
    state = await experiments.state(created.experiment_id)
    assert (state.winner, state.state, state.promoted) == ("chat@2", "running", None)
    assert state.decided_at >= state.started_at
    assert sum(variant.num_requests for variant in state.variants) == 400
    assert versions.promoted == []
    # Found once is found, whatever comes.
    for i in range(400, 800):
        user = f"user-{i}"
        model_id = experiments.choose("chat", user)
        experiments.observe(model_id, user, seen(user, failed=model_id == "chat@2"))
    assert (await experiments.state(created.experiment_id)).winner == "chat@2"


async def test_the_winner_is_promoted_by_one_call(
    experiments: Experiments, versions: ScriptedVersions
) -> None:
    created = await experiments.create(plan())
    ask(experiments, 400, control_fails)
    await experiments.state(created.experiment_id)
    state = await experiments.conclude(created.experiment_id, None, who="ann")
    assert (state.state, state.promoted, state.concluded_by) == ("concluded", "chat@2", "ann")
    assert state.ended_at is not None
    assert versions.promoted == [("chat@2", "ann")]
    assert experiments.choose("chat", "ann") is None
    assert await experiments.state(created.experiment_id) == state
    assert sum(variant.num_requests for variant in state.variants) == 400


async def test_without_a_winner_somebody_must_name_one(
    experiments: Experiments, versions: ScriptedVersions
) -> None:
    created = await experiments.create(plan())
    with pytest.raises(ConflictError, match="found none yet") as error:
        await experiments.conclude(created.experiment_id, None, who="ann")
    assert error.value.param == "winner"
    with pytest.raises(InvalidRequestError, match="one of chat@1, chat@2, got 'chat@3'"):
        await experiments.conclude(created.experiment_id, "chat@3", who="ann")
    state = await experiments.conclude(created.experiment_id, "chat@1", who="ann")
    assert (state.winner, state.promoted) == (None, "chat@1")
    with pytest.raises(ConflictError, match="concluded already"):
        await experiments.conclude(created.experiment_id, "chat@1", who="ann")
    assert len(versions.promoted) == 1


async def test_a_winner_is_promoted_by_itself_where_that_was_asked_for(
    versions: ScriptedVersions,
) -> None:
    async with running(versions, interval=0.01) as experiments:
        created = await experiments.create(plan(promote_winner=True))
        versions.swap_error = ConflictError("another change of chat runs")
        ask(experiments, 400, control_fails)
        state = await until(experiments, created.experiment_id, lambda state: bool(state.problem))
        assert (state.state, state.problem) == ("running", "another change of chat runs")
        versions.swap_error = None
        state = await until(
            experiments, created.experiment_id, lambda state: state.state == "concluded"
        )
    by = f"experiment {created.experiment_id}"
    assert (state.promoted, state.concluded_by, state.problem) == ("chat@2", by, None)
    assert versions.promoted == [("chat@2", by)]


async def test_a_promotion_that_is_refused_leaves_the_experiment_as_it_was(
    experiments: Experiments, versions: ScriptedVersions
) -> None:
    created = await experiments.create(plan())
    versions.swap_error = ConflictError("no")
    with pytest.raises(ConflictError, match="no"):
        await experiments.conclude(created.experiment_id, "chat@2", who="ann")
    assert experiments.choose("chat", "ann") is not None
    versions.swap_error = None
    state = await experiments.conclude(created.experiment_id, "chat@2", who="ann")
    assert state.state == "concluded"


async def test_of_a_name_one_experiment_runs(experiments: Experiments) -> None:
    created = await experiments.create(plan())
    assert experiments.occupant("chat") == f"experiment {created.experiment_id}"
    with pytest.raises(ConflictError, match=created.experiment_id) as error:
        await experiments.create(plan())
    assert error.value.param == "name"
    await experiments.conclude(created.experiment_id, "chat@1", who="ann")
    assert experiments.occupant("chat") is None
    await experiments.create(plan())


async def test_what_a_rollout_shares_out_is_not_shared_out_twice(
    versions: ScriptedVersions,
) -> None:
    async with running(versions, occupied={"chat": "rollout r-1"}.get) as experiments:
        with pytest.raises(ConflictError, match="rollout r-1 shares out the requests of chat"):
            await experiments.create(plan())


async def test_versions_must_be_there_and_answer(
    experiments: Experiments, versions: ScriptedVersions
) -> None:
    with pytest.raises(ModelNotFoundError, match="chat@9") as missing:
        await experiments.create(plan(variants=(Variant("chat@1"), Variant("chat@9"))))
    assert missing.value.param == "variants.1.model_id"
    versions.loading.add("chat@4")
    with pytest.raises(ConflictError, match="chat@4 is loading") as loading:
        await experiments.create(plan(variants=(Variant("chat@4"), Variant("chat@1"))))
    assert loading.value.param == "variants.0.model_id"


async def test_users_of_a_version_that_does_not_answer_get_the_active_one(
    experiments: Experiments, versions: ScriptedVersions
) -> None:
    created = await experiments.create(plan())
    versions.answering.remove("chat@2")
    chosen = Counter(experiments.choose("chat", f"{i}") for i in range(100))
    state = await experiments.state(created.experiment_id)
    assert set(chosen) == {"chat@1", None}
    assert state.variants[1].num_diverted == chosen[None]
    assert (state.variants[1].success.count, state.variants[1].success.mean) == (chosen[None], 0)
    diverted = next(i for i in range(100) if experiments.choose("chat", f"{i}") is None)
    experiments.observe("chat@1", "r", seen(f"{diverted}"))  # where it went instead
    state = await experiments.state(created.experiment_id)
    assert [variant.num_requests for variant in state.variants] == [0, 0]


async def test_a_version_that_keeps_dying_is_not_judged_by_what_it_answered(
    experiments: Experiments, versions: ScriptedVersions
) -> None:
    created = await experiments.create(plan())
    for i in range(400):
        versions.answering ^= {"chat@2"}
        model_id = experiments.choose("chat", f"{i}")
        if model_id is not None:
            experiments.observe(model_id, f"{i}", seen(f"{i}"))
    assert (await experiments.state(created.experiment_id)).winner == "chat@1"


@pytest.mark.parametrize(("diverted", "is_promoted"), [(0, True), (2, True), (20, False)])
async def test_a_winner_that_is_often_away_is_promoted_by_a_persons_word_alone(
    versions: ScriptedVersions, diverted: int, *, is_promoted: bool
) -> None:
    async with running(versions, interval=0.01) as experiments:
        created = await experiments.create(plan(metric="latency", promote_winner=True))
        users = [f"{i}" for i in range(600) if experiments.choose("chat", f"{i}") == "chat@2"]
        versions.answering.remove("chat@2")
        assert {experiments.choose("chat", user) for user in users[:diverted]} <= {None}
        versions.answering.add("chat@2")
        for i in range(600):
            model_id = experiments.choose("chat", f"{i}")
            assert model_id is not None
            latency = (2.0 if model_id == "chat@1" else 1.0) + i % 7 / 100
            experiments.observe(model_id, f"{i}", seen(f"{i}", latency=latency))
        state = await until(
            experiments,
            created.experiment_id,
            lambda state: bool(state.problem) or state.state == "concluded",
        )
        assert (state.winner, state.state == "concluded") == ("chat@2", is_promoted)
        if not is_promoted:
            count = diverted + len(users)
            assert f"chat@2 could not answer {diverted} of its {count} requests" in state.problem
            state = await experiments.conclude(created.experiment_id, None, who="ann")
    assert (state.promoted, state.problem) == ("chat@2", None)


async def test_a_problem_is_why_a_winner_was_not_promoted_and_nothing_else(
    versions: ScriptedVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(versions, interval=0.01) as experiments:
        created = await experiments.create(plan())
        look, failed = experiments._archive.look, asyncio.Event()

        async def fail(_experiment: object) -> object:
            failed.set()
            raise UnavailableError("the database is away", retry_after=1.0)

        monkeypatch.setattr(experiments._archive, "look", fail)
        await failed.wait()
        monkeypatch.setattr(experiments._archive, "look", look)
        assert (await experiments.state(created.experiment_id)).problem is None


async def test_a_reading_is_shown_again_for_a_while(versions: ScriptedVersions) -> None:
    async with running(versions, fresh_for=3600.0) as experiments:
        created = await experiments.create(plan())
        ask(experiments, 10)
        first = await experiments.state(created.experiment_id)
        ask(experiments, 10)
        assert await experiments.state(created.experiment_id) == first
        assert await experiments.states() == [first]
        assert sum(variant.num_requests for variant in first.variants) == 10
        end = await experiments.conclude(created.experiment_id, "chat@1", who="ann")
        assert await experiments.state(created.experiment_id) == end
        assert sum(variant.num_requests for variant in end.variants) == 20


async def test_a_version_that_is_made_active_by_hand_ends_it(
    versions: ScriptedVersions, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path}/headrace.db"
    async with running(versions, interval=0.01, database_url=database) as experiments:
        created = await experiments.create(plan())
        assert experiments.choose("chat", "ann") is not None
    async with running(versions, interval=0.01, database_url=database) as experiments:
        versions.made_active["chat"] = "chat@3"
        assert experiments.choose("chat", "ann") is None
        state = await until(
            experiments, created.experiment_id, lambda state: state.state == "concluded"
        )
    assert (state.promoted, state.concluded_by) == ("chat@3", "a change by hand")
    assert versions.promoted == []


async def test_feedback_counts_once_for_the_version_that_answered(
    experiments: Experiments,
) -> None:
    created = await experiments.create(plan(metric="feedback"))
    ask(experiments, 10)
    for i in range(10):
        experiments.feedback(f"request-{i}", 1.0)
    with pytest.raises(FeedbackGivenError):
        experiments.feedback("request-3", 0.0)
    with pytest.raises(RequestNotFoundError):
        experiments.feedback("request-10", 0.0)
    state = await experiments.state(created.experiment_id)
    assert [v.feedback.count for v in state.variants] == [v.num_requests for v in state.variants]
    await experiments.conclude(created.experiment_id, "chat@1", who="ann")
    with pytest.raises(RequestNotFoundError):
        experiments.feedback("request-1", 0.0)


async def test_what_nobody_knows_is_not_found(experiments: Experiments) -> None:
    with pytest.raises(ExperimentNotFoundError, match="exp-0"):
        await experiments.state("exp-0")
    with pytest.raises(ExperimentNotFoundError):
        await experiments.conclude("exp-0", None, who="ann")


async def test_the_newest_is_told_first_and_only_the_last_concluded_are_kept(
    versions: ScriptedVersions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "MAX_CONCLUDED", 2)
    database = f"sqlite:///{tmp_path}/headrace.db"
    ids = []
    async with running(versions, database_url=database) as experiments:
        for _ in range(4):
            created = await experiments.create(plan())
            ids.insert(0, created.experiment_id)
            if len(ids) < 4:
                await experiments.conclude(created.experiment_id, "chat@1", who="ann")
        assert [state.experiment_id for state in await experiments.states()] == ids[:3]


async def test_a_restart_goes_on_where_the_server_was(
    versions: ScriptedVersions, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path}/headrace.db"
    async with running(versions, database_url=database) as experiments:
        created = await experiments.create(plan())
        ask(experiments, 300, control_fails)
        experiments.feedback("request-1", 0.5)
        before = await experiments.state(created.experiment_id)
        chosen = {f"{i}": experiments.choose("chat", f"{i}") for i in range(100)}
    async with running(versions, database_url=database) as experiments:
        assert await experiments.state(created.experiment_id) == before
        assert chosen == {user: experiments.choose("chat", user) for user in chosen}
        experiments.feedback("request-2", 0.5)
        with pytest.raises(FeedbackGivenError):
            experiments.feedback("request-1", 0.5)
        end = await experiments.conclude(created.experiment_id, None, who="ann")
    async with running(versions, database_url=database) as experiments:
        assert await experiments.states() == [end]
        assert experiments.choose("chat", "ann") is None
    async with running(versions, database_url=database, server="another") as experiments:
        assert await experiments.states() == []


async def test_counts_are_stored_now_and_then(versions: ScriptedVersions, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/headrace.db"
    async with running(versions, database_url=database, interval=0.01) as experiments:
        created = await experiments.create(plan())
        ask(experiments, 50)
        async with asyncio.timeout(30):
            while True:
                async with running(versions, database_url=database) as killed:
                    state = await killed.state(created.experiment_id)
                if sum(variant.num_requests for variant in state.variants) == 50:
                    break


async def test_what_cannot_be_stored_does_not_begin(
    versions: ScriptedVersions, tmp_path: Path
) -> None:
    database = tmp_path / "headrace.db"
    async with running(versions, database_url=f"sqlite:///{database}") as experiments:
        store = experiments._archive._store
        await experiments._archive._in_thread(lambda: _drop(store, "headrace_experiments"))
        with pytest.raises(UnavailableError):
            await experiments.create(plan())
        assert experiments.choose("chat", "ann") is None
        assert await experiments.states() == []


async def test_what_has_happened_goes_on_where_it_cannot_be_stored(
    versions: ScriptedVersions,
) -> None:
    async with running(versions, interval=0.01) as experiments:
        created = await experiments.create(plan())
        store = experiments._archive._store
        await experiments._archive._in_thread(lambda: _drop(store, "headrace_experiments"))
        state = await experiments.conclude(created.experiment_id, "chat@2", who="ann")
        assert state.state == "concluded"
        assert versions.promoted == [("chat@2", "ann")]


def test_a_server_starts_without_statistics_and_database() -> None:
    code = (
        "import sys; import headrace.routing.experiments.experiments\n"
        "print(sorted({'scipy', 'sqlalchemy', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_a_server_that_stops_begins_nothing_and_says_so() -> None:
    versions = ScriptedVersions("chat@1", "chat@2", "vision@1", "vision@2")
    async with running(versions) as experiments:
        created = await experiments.create(plan())
    with pytest.raises(DrainingError):
        await experiments.create(plan("vision"))
    with pytest.raises(DrainingError):
        await experiments.state(created.experiment_id)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from(["chat", "vision"])),
        st.tuples(st.just("ask"), st.integers(1, 60)),
        st.tuples(st.just("score"), st.integers(0, 400)),
        st.tuples(st.just("conclude"), st.sampled_from(["chat@1", "vision@2", None])),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=12)
@given(operations)
def test_whatever_is_done_counts_and_states_agree(operations: list[tuple[str, Any]]) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(_Life(f"sqlite:///{folder}/headrace.db").live(operations))


class _Life:
    """Does what it is told, and knows what must come of it."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.versions = ScriptedVersions("chat@1", "chat@2", "vision@1", "vision@2")
        self.running: dict[str, str] = {}
        self.asked: Counter[str] = Counter()
        self.scores: dict[str, bool] = {}  # by request, of the running one alone
        self.num_requests = 0

    async def live(self, operations: list[tuple[str, Any]]) -> None:
        pending = list(operations)
        while True:
            async with running(self.versions, database_url=self.database) as experiments:
                await self._check(experiments)
                while pending and pending[0][0] != "restart":
                    kind, value = pending.pop(0)
                    await getattr(self, f"_{kind}")(experiments, value)
                    await self._check(experiments)
            if not pending:
                return
            pending.pop(0)

    async def _create(self, experiments: Experiments, name: str) -> None:
        if name in self.running:
            with pytest.raises(ConflictError):
                await experiments.create(plan(name))
            return
        self.running[name] = (await experiments.create(plan(name))).experiment_id

    async def _ask(self, experiments: Experiments, count: int) -> None:
        for _ in range(count):
            self.num_requests += 1
            request_id, user = f"r{self.num_requests}", f"u{self.num_requests % 50}"
            chosen = experiments.choose("chat", user)
            assert (chosen is None) == ("chat" not in self.running)
            experiments.observe(chosen or "chat@1", request_id, seen(user))
            if chosen is not None:
                self.asked[self.running["chat"]] += 1
                self.scores[request_id] = False

    async def _score(self, experiments: Experiments, number: int) -> None:
        request_id = f"r{number}"
        if request_id not in self.scores:
            with pytest.raises(RequestNotFoundError):
                experiments.feedback(request_id, 1.0)
        elif self.scores[request_id]:
            with pytest.raises(FeedbackGivenError):
                experiments.feedback(request_id, 1.0)
        else:
            experiments.feedback(request_id, 1.0)
            self.scores[request_id] = True

    async def _conclude(self, experiments: Experiments, winner: str | None) -> None:
        name = winner.partition("@")[0] if winner else "chat"
        if name not in self.running:
            return
        if winner is None:
            with pytest.raises(ConflictError):  # all is alike
                await experiments.conclude(self.running[name], None, who="ann")
            return
        state = await experiments.conclude(self.running.pop(name), winner, who="ann")
        assert (state.state, state.promoted) == ("concluded", winner)
        if name == "chat":
            self.scores.clear()

    async def _check(self, experiments: Experiments) -> None:
        states = {state.experiment_id: state for state in await experiments.states()}
        running = {state.name: each for each, state in states.items() if state.state == "running"}
        assert running == self.running
        for experiment_id, state in states.items():
            counted = sum(variant.num_requests for variant in state.variants)
            assert counted == self.asked[experiment_id]
            if running.get("chat") == experiment_id:
                scored = sum(variant.feedback.count for variant in state.variants)
                assert scored == sum(self.scores.values())


def _drop(store: Any, table: str) -> None:
    with store._engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {table}")
