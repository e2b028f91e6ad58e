import pytest
from harness.client import HttpClient, ServerError
from harness.first_token import FirstToken, GenerateStream, split, time_first_tokens
from scripted_server import listening, streaming

TEXT = b'data: {"request_id":"x","text":"a","finish_reason":null}\n\n'
END = b'data: {"text":"","finish_reason":"length","metrics":{"time_to_first_token_ms":2.5}}\n\n'


async def test_the_engine_s_own_time_comes_with_the_last_event() -> None:
    async with listening(streaming(TEXT, TEXT, END)) as script:
        http = HttpClient(script.url)
        (token,) = await time_first_tokens(http, ["once"])
        http.close()
    assert token.engine_seconds == 0.0025
    assert token.sent < token.seen
    assert token.added == pytest.approx(token.seen - token.sent - 0.0025)


def test_the_first_whole_event_is_the_one_that_counts() -> None:
    stream = GenerateStream()
    stream.feed(TEXT[:10])
    assert stream.first is None
    stream.feed(TEXT[10:])
    first = stream.first
    assert first is not None
    stream.feed(TEXT + END)
    assert stream.first == first


async def test_an_answer_without_its_metrics_is_an_error() -> None:
    async with listening(streaming(TEXT)) as script:
        http = HttpClient(script.url)
        with pytest.raises(ServerError, match="no first token with its metrics"):
            await time_first_tokens(http, ["once"])
        http.close()


def test_what_is_added_has_two_sides() -> None:
    tokens = [FirstToken(sent=10.0, seen=10.007, engine_seconds=0.004)]
    found = split(tokens, [10.001])
    assert found["added"].p50 == pytest.approx(3)
    assert found["before_the_engine"].p50 == pytest.approx(1)
    assert found["after_the_engine"].p50 == pytest.approx(2)


@pytest.mark.parametrize("accepted", [9.9, 10.1])
def test_moments_of_another_request_are_noticed(accepted: float) -> None:
    with pytest.raises(ValueError, match="before it was sent or after its answer"):
        split([FirstToken(10.0, 10.007, 0.004)], [accepted])


def test_every_request_has_its_moment() -> None:
    with pytest.raises(ValueError, match="shorter"):
        split([FirstToken(10.0, 10.007, 0.004)], [])
