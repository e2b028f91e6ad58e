import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.telemetry.forms import TextRenderer, add_time, render_json

_VALUES = st.one_of(
    st.text(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    st.lists(st.integers(), max_size=3),
)
_NAMES = st.text("abcdefghij_", min_size=1, max_size=8)
_EVENTS = st.dictionaries(_NAMES, _VALUES, max_size=6)
_LEVELS = st.sampled_from(["debug", "info", "warning", "error", "critical"])


def event(fields: dict[str, Any], level: str = "info", what: object = "x.y") -> dict[str, Any]:
    return {**fields, "event": what, "level": level, "timestamp": "2026-01-02T03:04:05.000006Z"}


@given(_EVENTS, _LEVELS, st.text())
@example({"path": "/a b", "said": "it's", "end": "x \n"}, "info", "http.request" * 4)
def test_text_looks_as_structlog_has_it(fields: dict[str, Any], level: str, what: str) -> None:
    theirs = structlog.dev.ConsoleRenderer(colors=False)
    expected = theirs(None, level, event(fields, level, what))
    assert TextRenderer(colors=False)(None, level, event(fields, level, what)) == expected


@pytest.mark.parametrize("extra", [{"logger": "a.b"}, {"stack": "here"}, {"exception": "there"}])
@pytest.mark.parametrize("colors", [True, False])
def test_the_rest_of_a_line_is_structlogs(extra: dict[str, Any], *, colors: bool) -> None:
    theirs = structlog.dev.ConsoleRenderer(colors=colors)
    for fields in ({"a": 1}, {"a": 1, **extra}):
        expected = theirs(None, "info", event(fields))
        assert TextRenderer(colors=colors)(None, "info", event(fields)) == expected


@pytest.mark.parametrize("colors", [True, False])
def test_a_trace_is_structlogs_but_for_what_is_not_printable(*, colors: bool) -> None:
    theirs = structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback
    )
    for said, shown in {"it's\nodd": "it's\nodd", "\x1b[2J\x85": r"\x1b[2J\x85"}.items():
        expected = theirs(None, "info", event({"exc_info": ValueError(shown)}))
        line = TextRenderer(colors=colors)(None, "info", event({"exc_info": ValueError(said)}))
        assert line == expected


@given(_EVENTS)
@example({"path": "/\u202e\x9bé"})
@example({"path": "\ud800", "many": 1 << 100})
def test_json_says_the_same_in_ascii(fields: dict[str, Any]) -> None:
    line = render_json(None, "info", event(fields))
    assert json.loads(line) == event(fields)
    assert list(json.loads(line)) == list(event(fields)), "fields keep their order"
    assert line.isascii()
    assert "\n" not in line


def test_what_has_no_json_is_shown_as_python_does() -> None:
    line = json.loads(render_json(None, "info", event({"error": ValueError("no"), "of": {1: "é"}})))
    assert (line["error"], line["of"]) == ("ValueError('no')", {"1": "é"})


def test_a_line_has_its_moment_in_utc() -> None:
    before = datetime.now(UTC)
    stamp = add_time(None, "info", {})["timestamp"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", stamp)
    moment = datetime.fromisoformat(stamp)
    assert before - timedelta(milliseconds=1) <= moment <= datetime.now(UTC)


def test_a_moment_keeps_the_zeros_of_its_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_042_999)
    assert add_time(None, "info", {})["timestamp"] == "2023-11-14T22:13:20.000042Z"


def test_an_event_without_words_is_a_line() -> None:
    assert "a=1" in TextRenderer(colors=False)(None, "info", {"a": 1, "level": "info"})
