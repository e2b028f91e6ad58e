"""The rule of start: the last word counts. Stories first, then what holds for all of them."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.registry.changes.reconcile import Plan, reconcile
from headrace.registry.spec import ModelSpec
from headrace.registry.storage.stored import (
    StoredModel,
    StoredState,
    StoredVersion,
    declaration_digest,
)


def spec(version: int = 1, name: str = "m", source: str = "good") -> ModelSpec:
    return ModelSpec(name=name, version=version, source=source)


def at_run_time(version: int, state: StoredState = "ready", name: str = "m") -> StoredVersion:
    return StoredVersion(spec=spec(version, name), state=state, is_declared=False)


def left(*declared: ModelSpec, active: int | None = 1, previous: int | None = None) -> StoredModel:
    """What a server that was started with this declaration left behind."""
    (name,) = {each.name for each in declared}
    return StoredModel(
        name=name,
        declaration=declaration_digest(declared),
        active=active,
        previous=previous,
        versions=tuple(
            StoredVersion(spec=each, state="ready", is_declared=True) for each in declared
        ),
    )


def only(plan: Plan) -> StoredModel:
    (model,) = plan.models
    return model


def state_of(model: StoredModel, version: int) -> StoredState:
    (state,) = (each.state for each in model.versions if each.spec.version == version)
    return state


# Stories


def test_at_the_first_start_the_highest_declared_version_is_active() -> None:
    plan = reconcile([spec(2), spec(3), spec(1)], [])
    model = only(plan)
    assert (model.active, model.previous) == (3, None)
    assert {v.spec.version for v in model.versions} == {1, 2, 3}
    assert all(v.state == "loading" and v.is_declared for v in model.versions)
    assert (plan.changed, plan.forgotten) == ({"m"}, frozenset())


def test_a_replaced_version_that_was_not_to_be_kept_ends_with_the_server() -> None:
    passing = replace(spec(2), retain="none")
    gone = StoredVersion(spec=passing, state="deprecated", is_declared=False)
    before = replace(left(spec(1), active=1, previous=2), versions=(at_run_time(1), gone))
    model = only(reconcile([spec(1)], [before]))
    assert {each.spec.version for each in model.versions} == {1}
    assert (model.active, model.previous) == (1, None)


def test_an_unchanged_declaration_keeps_what_was_done_since() -> None:
    before = left(spec(1), active=2, previous=1)
    before = replace(before, versions=(*before.versions, at_run_time(2)))
    plan = reconcile([spec(1)], [before])
    assert only(plan) == before
    assert not plan.changed
    assert not plan.forgotten


def test_the_order_of_a_declaration_says_nothing() -> None:
    before = left(spec(1), spec(2), active=1)
    assert only(reconcile([spec(2), spec(1)], [before])).active == 1


def test_a_changed_declaration_is_the_newer_word() -> None:
    before = left(spec(1), active=2, previous=1)
    before = replace(before, versions=(*before.versions, at_run_time(2)))
    plan = reconcile([spec(1, source="other")], [before])
    model = only(plan)
    assert (model.active, model.previous) == (1, None)
    assert [v.spec for v in model.versions] == [spec(1, source="other")]
    assert plan.changed == {"m"}


def test_a_declared_version_that_was_unloaded_stays_away() -> None:
    declared = [spec(1), spec(2)]
    before = left(*declared, active=1)
    before = replace(before, versions=before.versions[:1])
    assert [v.spec.version for v in only(reconcile(declared, [before])).versions] == [1]


def test_a_declared_model_that_was_unloaded_stays_away() -> None:
    before = replace(left(spec(1), active=None), versions=())
    plan = reconcile([spec(1)], [before])
    assert only(plan).versions == ()
    assert not plan.changed


def test_a_declaration_that_was_taken_out_is_forgotten_and_what_was_only_loaded_is_not() -> None:
    loaded = StoredModel(
        name="l", declaration="", active=1, previous=None, versions=(at_run_time(1, name="l"),)
    )
    plan = reconcile([], [left(spec(1)), loaded])
    assert plan.models == (loaded,)
    assert plan.forgotten == {"m"}


def test_a_model_that_was_loaded_and_is_declared_now_is_as_it_is_declared() -> None:
    loaded = StoredModel(
        name="m", declaration="", active=4, previous=None, versions=(at_run_time(4),)
    )
    plan = reconcile([spec(1)], [loaded])
    assert only(plan).active == 1
    assert plan.changed == {"m"}


def test_without_its_active_version_a_model_takes_one_that_has_not_failed() -> None:
    before = StoredModel(
        name="m",
        declaration="",
        active=None,
        previous=None,
        versions=(at_run_time(1), at_run_time(2), at_run_time(3, "failed")),
    )
    assert only(reconcile([], [before])).active == 2


def test_a_replaced_version_that_is_all_there_is_left_is_to_be_loaded() -> None:
    before = StoredModel(
        name="m",
        declaration="",
        active=None,
        previous=1,
        versions=(at_run_time(1, "deprecated"),),
    )
    model = only(reconcile([], [before]))
    assert (model.active, model.previous) == (1, None)
    assert state_of(model, 1) == "ready"


# What holds for whatever was left and declared

NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(1, 4)
STATES = st.sampled_from(["loading", "ready", "deprecated", "failed"])


@st.composite
def declarations(draw: st.DrawFn) -> list[ModelSpec]:
    keys = draw(st.sets(st.tuples(NAMES, NUMBERS), max_size=6))
    source = draw(st.sampled_from(["good", "other"]))
    return [spec(number, name, source) for name, number in keys]


@st.composite
def stored_models(draw: st.DrawFn, declared: list[ModelSpec]) -> list[StoredModel]:
    return [
        draw(_stored_model(name, [each for each in declared if each.name == name]))
        for name in draw(st.sets(NAMES))
    ]


@st.composite
def _stored_model(draw: st.DrawFn, name: str, declared: list[ModelSpec]) -> StoredModel:
    digests = ["", "of another declaration", declaration_digest(declared)]
    numbers = draw(st.sets(NUMBERS))
    pointers = st.sampled_from([None, *numbers])
    return StoredModel(
        name=name,
        declaration=draw(st.sampled_from(digests)),
        active=draw(pointers),
        previous=draw(pointers),
        versions=tuple(
            StoredVersion(
                spec=spec(number, name), state=draw(STATES), is_declared=draw(st.booleans())
            )
            for number in sorted(numbers)
        ),
    )


@st.composite
def starts(draw: st.DrawFn) -> tuple[list[ModelSpec], list[StoredModel]]:
    declared = draw(declarations())
    return declared, draw(stored_models(declared))


@given(starts())
def test_every_model_is_planned_once_or_forgotten(
    start: tuple[list[ModelSpec], list[StoredModel]],
) -> None:
    declared, stored = start
    plan = reconcile(declared, stored)
    planned = [model.name for model in plan.models]
    assert len(planned) == len(set(planned))
    assert {each.name for each in declared} <= set(planned)
    assert plan.changed <= set(planned)
    assert not plan.forgotten & set(planned)
    assert {model.name for model in stored} <= plan.forgotten | set(planned)


@given(starts())
def test_pointers_lead_to_versions_that_are_there_and_the_active_one_is_to_be_loaded(
    start: tuple[list[ModelSpec], list[StoredModel]],
) -> None:
    for model in reconcile(*start).models:
        numbers = {version.spec.version for version in model.versions}
        assert model.active is None or model.active in numbers
        assert model.previous is None or model.previous in numbers - {model.active}
        if model.active is not None:
            assert state_of(model, model.active) != "deprecated"
        elif model.versions:
            assert all(version.state == "failed" for version in model.versions)


@given(starts())
def test_the_next_start_with_the_same_words_changes_nothing(
    start: tuple[list[ModelSpec], list[StoredModel]],
) -> None:
    declared, _ = start
    once = reconcile(*start)
    again = reconcile(declared, once.models)
    assert again.models == once.models
    assert not again.changed
    assert not again.forgotten


@given(starts())
def test_a_name_that_is_declared_anew_is_exactly_as_declared(
    start: tuple[list[ModelSpec], list[StoredModel]],
) -> None:
    declared, _ = start
    plan = reconcile(*start)
    for model in plan.models:
        if model.name in plan.changed:
            specs = {each for each in declared if each.name == model.name}
            assert {version.spec for version in model.versions} == specs
            assert model.active == max(each.version for each in specs)
