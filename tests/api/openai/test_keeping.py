import pytest

from headrace.api.openai import keeping
from headrace.api.openai.keeping import Kept, KeptBytes


class Body:
    def __init__(self) -> None:
        self.is_there = True

    def forget(self) -> None:
        assert self.is_there, "it is let go of once"
        self.is_there = False


def stream(shared: KeptBytes, body_size: int = 0) -> tuple[Kept, Body]:
    body = Body()
    kept = Kept(shared, forget=body.forget)
    kept.begin(body_size)
    return kept, body


def test_all_is_counted_and_given_back() -> None:
    shared = KeptBytes(100)
    kept, body = stream(shared, 10)
    kept.add(b"ab")
    kept.add(b"cde")
    assert (kept.events, shared.num_bytes, body.is_there) == (b"abcde", 15, True)
    kept.drop()
    kept.drop()
    kept.add(b"f")
    assert (kept.events, shared.num_bytes, body.is_there) == (None, 0, False)


def test_a_long_answer_is_kept_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "MAX_KEPT", 4)
    shared = KeptBytes(100)
    kept, body = stream(shared, 10)  # a long body is no long answer
    kept.add(b"abcd")
    assert kept.events == b"abcd"
    kept.add(b"e")
    assert (kept.events, shared.num_bytes, body.is_there) == (None, 0, False)


def test_over_what_all_may_keep_a_stream_gives_its_own_up() -> None:
    shared = KeptBytes(20)
    first, _ = stream(shared, 10)
    second, body = stream(shared, 10)
    second.add(b"a")
    assert (second.events, shared.num_bytes, body.is_there) == (None, 10, False)
    first.add(b"b" * 10)
    third, body = stream(shared, 1)
    assert (third.events, shared.num_bytes, body.is_there) == (None, 20, False)
    assert first.events == b"b" * 10
