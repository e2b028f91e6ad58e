import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.routing.stats import clusters as of_clusters
from headrace.routing.stats import mixture
from headrace.routing.stats.clusters import NUM_CLUSTERS, Clusters, cluster_of
from headrace.routing.stats.estimate import Estimate
from headrace.routing.stats.moments import Moments
from routing.stats.simulated import (
    LOOKS,
    after_every_request,
    clustered,
    on_arrays,
    running,
    share_that_ever,
)

ALPHA = 0.05
requests = st.lists(st.tuples(st.text(max_size=3), st.floats(-100, 100)), max_size=40)


def clusters_of(requests: list[tuple[str, float]]) -> Clusters:
    clusters = Clusters()
    for user, value in requests:
        clusters.add(user, value)
    return clusters


@settings(deadline=None)
@given(requests, requests)
def test_merged_clusters_are_those_of_one_stream(first: list, second: list) -> None:
    merged = clusters_of(first)
    merged.merge(clusters_of(second))
    whole = clusters_of(first + second)
    assert merged.counts == whole.counts
    assert merged.totals == pytest.approx(whole.totals, abs=1e-9)


@given(requests)
def test_they_come_back_from_json_as_they_were(requests: list) -> None:
    clusters = clusters_of(requests)
    assert msgspec.json.decode(msgspec.json.encode(clusters), type=Clusters) == clusters


@given(st.permutations([("a", 1.0), ("a", 2.0), ("b", 5.0), ("c", 3.0)]))
def test_the_order_of_requests_does_not_matter(requests: list) -> None:
    assert clusters_of(requests).estimate == pytest.approx(clusters_of(sorted(requests)).estimate)


def test_of_users_with_one_request_each_it_is_the_estimate_of_a_mean() -> None:
    users = {cluster_of(str(user)): str(user) for user in range(200)}.values()  # none share one
    values = np.random.default_rng(1).lognormal(size=len(users)).tolist()
    moments = Moments()
    for value in values:
        moments.add(value)
    clusters = clusters_of(list(zip(users, values, strict=True)))
    assert clusters.estimate == pytest.approx(moments.estimate)
    assert clusters.num_clusters == clusters.num_samples == len(users)


def test_asking_one_user_again_tells_nothing_new() -> None:
    once = clusters_of([("a", 1.0), ("b", 2.0)])
    again = clusters_of([("a", 1.0), ("b", 2.0)] * 50)
    assert again.estimate == pytest.approx(once.estimate)


def test_one_user_tells_nothing_of_the_variance() -> None:
    assert Clusters().estimate == (0.0, math.inf, 0.0)
    assert clusters_of([("a", 1.0), ("a", 3.0)]).estimate == (2.0, math.inf, 0.0)


def test_variances_over_clusters_are_right_where_users_share_them() -> None:
    rng = np.random.default_rng(2)
    means, variances = [], []
    for _ in range(100):
        users = rng.integers(0, 10**9, 1500)
        repeated = np.repeat(users, 1 + users % 3)
        values = np.repeat(rng.lognormal(size=users.size), 1 + users % 3)
        clusters = clusters_of([(str(u), v) for u, v in zip(repeated, values, strict=True)])
        assert clusters.num_clusters < NUM_CLUSTERS
        means.append(clusters.estimate.value)
        variances.append(clusters.estimate.variance)
    assert np.mean(variances) == pytest.approx(np.var(means, ddof=1), rel=0.3)


def test_a_cluster_stays_the_same_over_restarts_and_takes_its_share() -> None:
    assert cluster_of("someone") == 863
    counts = np.bincount([cluster_of(str(user)) for user in range(20_000)], minlength=NUM_CLUSTERS)
    assert counts.min() > 0
    assert counts.max() < 3 * counts.mean()


def test_simulated_clusters_are_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_clusters, "cluster_of", int)
    rng = np.random.default_rng(3)
    users, values = rng.integers(0, 20, (1, 100)), rng.lognormal(size=(1, 100))
    after = clustered(users, values)
    for look in (1, 10, 99):
        seen = zip(users[0, : look + 1], values[0, : look + 1], strict=True)
        real = clusters_of([(str(user), value) for user, value in seen])
        assert [part[0, look] for part in after] == pytest.approx(real.estimate)


def test_correlated_requests_mislead_a_count_of_requests_but_not_of_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_arrays(monkeypatch, mixture, "log", "sqrt")
    rng, every = np.random.default_rng(4), 5
    sides = [requests_of_users(rng, n) for n in (LOOKS // every, LOOKS - LOOKS // every)]
    by_user, by_request = (
        ever_different([estimate(*side) for side in sides], every)
        for estimate in (clustered, lambda _, values: running(values))
    )
    assert by_user <= ALPHA
    assert by_request > 3 * ALPHA


def requests_of_users(rng: np.random.Generator, count: int, streams: int = 200) -> tuple:
    """Of 100 users, some of whom ask more and some of whom wait longer than others."""
    activity = rng.exponential(size=(streams, 100)).cumsum(1)
    drawn = rng.random((streams, count)) * activity[:, -1:]
    users = np.stack([np.searchsorted(a, d) for a, d in zip(activity, drawn, strict=True)])
    habits = rng.lognormal(0, 0.7, (streams, 100))
    return users, np.take_along_axis(habits, users, 1) * rng.lognormal(0, 0.5, users.shape)


def ever_different(sides: list[Estimate], every: int) -> float:
    one, other = after_every_request(*sides, every)
    difference = Estimate(*(part[:, 100 * every :] for part in one.minus(other)))
    low, high = mixture.interval(difference, 0.3, ALPHA)
    return share_that_ever((low > 0) | (high < 0))
