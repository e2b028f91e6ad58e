import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import FeedbackGivenError, RequestNotFoundError
from headrace.routing.experiments.recent import RecentRequest, RecentRequests


def request(request_id: str, at: float = 0.0, experiment_id: str = "exp-1") -> RecentRequest:
    return RecentRequest(request_id, experiment_id, "chat@1", "ann", at)


def test_a_request_takes_one_score() -> None:
    recent = RecentRequests()
    recent.add(request("r1"))
    assert recent.take("r1", 0.0, 1.0).user == "ann"
    with pytest.raises(FeedbackGivenError, match="r1") as error:
        recent.take("r1", 1.0, 1.0)
    assert (error.value.status, error.value.param) == (409, "request_id")
    assert [each.score for each in recent] == [0.0]


def test_a_request_that_nobody_knows_is_not_found() -> None:
    with pytest.raises(RequestNotFoundError, match="'no'") as error:
        RecentRequests().take("no", 1.0, 0.0)
    assert (error.value.status, error.value.code) == (404, "request_not_found")


def test_the_oldest_make_room() -> None:
    recent = RecentRequests(max_requests=2)
    for number in range(3):
        recent.add(request(f"r{number}", at=number))
    assert [each.request_id for each in recent] == ["r1", "r2"]


def test_what_is_too_old_is_forgotten() -> None:
    recent = RecentRequests(max_age=10.0)
    recent.add(request("r1", at=0.0))
    recent.add(request("r2", at=5.0))
    assert recent.take("r1", 1.0, now=10.0)
    with pytest.raises(RequestNotFoundError):
        recent.take("r1", 1.0, now=10.1)
    assert len(recent) == 1


def test_who_repeats_an_id_takes_no_feedback_from_its_first_request() -> None:
    recent = RecentRequests(max_age=10.0)
    recent.add(request("r1"))
    recent.add(request("r2"))
    recent.add(request("r1", at=3.0))
    assert recent.take("r1", 0.5, 3.0).at == 0.0
    recent.add(request("r1", at=4.0))
    with pytest.raises(FeedbackGivenError):
        recent.take("r1", 1.0, 4.0)
    assert len(recent) == 2


def test_an_id_that_is_forgotten_may_be_used_again() -> None:
    recent = RecentRequests(max_age=10.0)
    recent.add(request("r1"))
    recent.add(request("r1", at=11.0))
    assert recent.take("r1", 0.5, 11.0).at == 11.0


def test_an_experiment_that_is_over_wants_no_feedback() -> None:
    recent = RecentRequests()
    recent.add(request("r1"))
    recent.add(request("r2", experiment_id="exp-2"))
    recent.forget("exp-1")
    assert [each.request_id for each in recent] == ["r2"]


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 30)), max_size=60))
def test_it_is_bounded_whatever_comes(requests: list[tuple[int, float]]) -> None:
    recent, now = RecentRequests(max_requests=8, max_age=50.0), 0.0
    for number, seconds in requests:
        now += seconds
        known = {each.request_id: each.at for each in recent if now - each.at <= 50.0}
        recent.add(request(f"r{number}", at=now))
        ats = [each.at for each in recent]
        assert len(recent) <= 8
        assert ats == sorted(ats)
        assert all(now - at <= 50.0 for at in ats)
        kept = {each.request_id: each.at for each in recent}
        assert kept[f"r{number}"] == known.get(f"r{number}", now)


def test_what_a_life_before_left_is_taken_up_without_what_is_too_old() -> None:
    recent = RecentRequests(max_age=10.0)
    recent.restore([request("r1", at=0.0), request("r2", at=9.0)], now=12.0)
    assert [each.request_id for each in recent] == ["r2"]
