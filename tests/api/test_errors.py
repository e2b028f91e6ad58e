import httpx
import pytest

from api.scripted import ScriptedRegistry
from headrace.api.errors import error_response
from headrace.api.exchange import Exchange
from headrace.errors import (
    BodyTimeoutError,
    DeadlineError,
    HeadraceError,
    NotReadyError,
    QueueFullError,
)


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (3.01, "4")])
def test_the_retry_time_is_whole_seconds_rounded_up(seconds: float, header: str) -> None:
    error = QueueFullError("Full.", retry_after=seconds)
    answer = error_response(error, Exchange(request_id="r"))
    assert answer.headers["retry-after"] == header


def test_a_503_always_says_when_to_come_back() -> None:
    answer = error_response(NotReadyError("Loading."), Exchange(request_id="r"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize("error", [BodyTimeoutError("Slow."), DeadlineError("Over.")])
def test_a_body_that_was_given_up_closes_its_connection(error: HeadraceError) -> None:
    answer = error_response(error, Exchange(request_id="r", is_body_arriving=True))
    assert answer.headers["connection"] == "close"


def test_a_deadline_after_the_body_keeps_the_connection() -> None:
    answer = error_response(DeadlineError("Over."), Exchange(request_id="r"))
    assert "connection" not in answer.headers


async def test_a_path_that_does_not_exist_is_an_error_like_any_other(
    http: httpx.AsyncClient,
) -> None:
    answer = await http.get("/nope")
    assert answer.status_code == 404
    assert answer.json() == {
        "error": {
            "message": "There is no GET /nope.",
            "type": "invalid_request_error",
            "param": None,
            "code": "not_found",
            "request_id": answer.headers["x-request-id"],
        }
    }


async def test_a_wrong_method_says_which_are_right(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/chat/completions")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


async def test_a_model_that_is_loading_is_a_503_with_a_retry_time(
    http: httpx.AsyncClient, registry: ScriptedRegistry
) -> None:
    registry.error = NotReadyError("chat is loading.", retry_after=2)
    answer = await http.post("/api/v1/generate", json={"prompt": "x"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json()["error"]["code"] == "model_not_ready"


async def test_a_fault_before_any_answer_is_a_bare_500(
    http: httpx.AsyncClient, registry: ScriptedRegistry
) -> None:
    registry.error = ZeroDivisionError("a secret")
    answer = await http.post("/api/v1/generate", json={"prompt": "x"})
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "Internal server error."
    assert "x-content-type-options" in answer.headers
