from headrace.routing.rollouts.assignment import place_of
from headrace.routing.stats.clusters import NUM_CLUSTERS, cluster_of

USERS = [f"user {i}" for i in range(20_000)]


def test_a_user_is_always_at_the_same_place() -> None:
    assert place_of("r", "ada") == place_of("r", "ada") == 0.8386478731392562


def test_places_are_spread_evenly_between_0_and_1() -> None:
    places = sorted(place_of("r", user) for user in USERS)
    assert places[0] >= 0
    assert places[-1] < 1
    # Kolmogorov's distance; 1.95 / sqrt(n) is passed once in a thousand times.
    apart = max(abs(place - i / len(places)) for i, place in enumerate(places))
    assert apart < 1.95 / len(places) ** 0.5


def test_another_rollout_has_other_users_first() -> None:
    first = [{user for user in USERS if place_of(each, user) < 0.05} for each in ("a", "b")]
    share = len(first[0] & first[1]) / len(first[0])
    assert 0.02 < share < 0.09


def test_a_place_says_nothing_of_the_cluster_in_the_statistics() -> None:
    clusters = [cluster_of(user) for user in USERS if place_of("r", user) < 0.1]
    assert abs(sum(clusters) / len(clusters) / NUM_CLUSTERS - 0.5) < 0.03


def test_any_text_is_a_user() -> None:
    assert 0 <= place_of("r" * 200, "\udcff\0") < 1
