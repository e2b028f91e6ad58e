from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.experiments.assignment import Assignment
from headrace.routing.stats.clusters import cluster_of

USERS = [f"user-{i}" for i in range(4000)]
ids = st.text(max_size=80)
weights = st.lists(st.floats(0.01, 1000), min_size=2, max_size=16)


@given(ids, weights, st.text())
def test_a_user_gets_the_same_variant_always(
    experiment_id: str, weights: list[float], user: str
) -> None:
    variant = Assignment(experiment_id, weights).variant_of(user)
    assert 0 <= variant < len(weights)
    assert Assignment(experiment_id, weights).variant_of(user) == variant


@given(ids, weights, st.floats(0.001, 1000))
def test_weights_may_be_in_any_unit(experiment_id: str, weights: list[float], unit: float) -> None:
    scaled = Assignment(experiment_id, [weight * unit for weight in weights])
    plain = Assignment(experiment_id, weights)
    moved = sum(scaled.variant_of(user) != plain.variant_of(user) for user in USERS[:200])
    assert moved <= 1  # who stands on an edge, to the last digit


@given(st.text(max_size=20), st.lists(st.floats(0.1, 10), min_size=2, max_size=5))
def test_variants_get_users_by_their_weights(experiment_id: str, weights: list[float]) -> None:
    assignment = Assignment(experiment_id, weights)
    seen = Counter(assignment.variant_of(user) for user in USERS)
    for variant, weight in enumerate(weights):
        expected = len(USERS) * weight / sum(weights)
        assert abs(seen[variant] - expected) < 6 * expected**0.5 + 1


def test_another_experiment_mixes_users_anew() -> None:
    one, other = Assignment("exp-1", [1, 1]), Assignment("exp-2", [1, 1])
    same = sum(one.variant_of(user) == other.variant_of(user) for user in USERS)
    assert abs(same - len(USERS) / 2) < 200


def test_a_variant_says_nothing_of_a_users_cluster() -> None:
    assignment = Assignment("exp-1", [1, 1])
    halves = Counter((assignment.variant_of(user), cluster_of(user) % 2) for user in USERS)
    assert all(abs(count - len(USERS) / 4) < 150 for count in halves.values())
