import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import (
    BodyTooLargeError,
    ContextLengthError,
    DeadlineError,
    HeadraceError,
    InvalidRequestError,
    NotReadyError,
    QueueFullError,
    UnsupportedParameterError,
    WorkerDiedError,
)
from headrace.routing.upstream.errors import (
    UpstreamBusyError,
    UpstreamFaultError,
    UpstreamRefusedError,
)
from headrace.routing.upstream.refusals import MAX_MESSAGE, Refusals, read_retry_after

REFUSALS = Refusals("up", "sk-secret")


def refuse(status: int, body: object = None, **headers: str) -> HeadraceError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return REFUSALS.of_answer(status, headers, data, now=0.0)


def error(**fields: Any) -> dict[str, Any]:
    return {"error": {"message": "no", **fields}}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, error(code="unsupported_parameter", param="top_k"), UnsupportedParameterError),
        (400, error(code="context_length_exceeded"), ContextLengthError),
        (400, error(type="exceed_context_size_error", code=400), ContextLengthError),
        (400, error(code="queue_full"), InvalidRequestError),
        (422, {"detail": "no"}, InvalidRequestError),
        (413, error(), BodyTooLargeError),
        (408, error(), UpstreamBusyError),
        (429, error(code="insufficient_quota"), UpstreamBusyError),
        (503, error(code="queue_full"), QueueFullError),
        (503, error(code="model_not_ready"), NotReadyError),
        (504, error(code="deadline_exceeded"), DeadlineError),
        (504, error(), UpstreamFaultError),
        (500, error(code="worker_died"), WorkerDiedError),
        (500, error(code="invalid_value"), UpstreamFaultError),
        (500, {"object": "error", "message": "no", "code": 500}, UpstreamFaultError),
        (500, {"error": "no"}, UpstreamFaultError),
    ],
)
def test_a_status_and_what_fits_it_decide(
    status: int, body: Any, kind: type[HeadraceError]
) -> None:
    refused = refuse(status, body)
    assert type(refused) is kind
    assert refused.message == "upstream up: no"


@pytest.mark.parametrize("status", [200, 204, 301, 302, 401, 402, 403, 404, 405, 409, 418])
def test_what_is_about_us_is_not_told_to_clients(status: int) -> None:
    refused = refuse(status, error(message="key sk-sec... of org-7", code="model_not_found"))
    assert type(refused) is UpstreamRefusedError
    assert refused.message == f"upstream up: it refused us with status {status}"
    assert refused.status == 500


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", b"[" * 100_000, b'{"error": [1]}', b"7"])
def test_a_body_that_says_nothing_leaves_the_status(body: bytes) -> None:
    assert refuse(500, body).message == "upstream up: it answered with status 500"


def test_a_message_is_one_bounded_line_without_the_key() -> None:
    said = refuse(400, error(message="a\x00\x1b[31m\r\nb\u202e sk-secret " + "x" * 10_000))
    assert said.message.startswith("upstream up: a [31m b *** xxx")
    assert len(said.message) < MAX_MESSAGE + 50


def test_a_parameter_that_is_none_is_passed_over() -> None:
    for param in (["a"], "p" * 1000, "a b", "a\n", "", 7):
        assert refuse(400, error(param=param)).param is None
    assert refuse(400, error(param="messages[0].content")).param == "messages[0].content"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0.5", 0.5),
        ("999999999", 3600.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert read_retry_after(header, now=10.0) == seconds


@given(st.text())
def test_any_retry_after_is_read_or_passed_over(header: str) -> None:
    seconds = read_retry_after(header, now=0.0)
    assert seconds is None or 0 <= seconds <= 3600
