import json
from collections import deque
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from headrace.cli import main, rollout_shown
from headrace.client.connection import read
from headrace.client.rollouts import Rollout as Told
from models_server import ModelsServer, refusal
from rollout_states import BEGAN, listed, rollout, told, used

PATH = "/api/v1/rollouts"
ONE = f"GET {PATH}/r1"


class Answers(dict[str, Any]):
    """Some routes answer something else each time; the last answer stays."""

    def __getitem__(self, route: str) -> Any:
        answers = super().__getitem__(route)
        if not isinstance(answers, deque):
            return answers
        return answers.popleft() if len(answers) > 1 else answers[0]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelsServer]:
    """Shadows the real one: what is asked here, a script answers."""
    monkeypatch.setattr(rollout_shown, "POLL", 0.0)
    with ModelsServer() as running:
        running.answers = Answers()
        yield running


@pytest.fixture
def run(server: ModelsServer, capfd: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str, url: str = server.url) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["rollout", *arguments, "--url", url])
        out, err = capfd.readouterr()
        assert "\x1b" not in out + err
        return int(end.value.code or 0), out, err

    return run


def life() -> list[bytes]:
    """It begins, is paused, goes on, and is sent back."""
    made = used(rollout())
    states = [told(made, 1)]
    made.pause(BEGAN + 2, "by ann")
    states.append(told(made, 3))
    made.resume(BEGAN + 4, "by ann")
    states.append(told(made, 5))
    made.abort(BEGAN + 6, "by ann")
    states.append(told(made, 7))
    return states


def words(line: str) -> str:
    return " ".join(line.split())


def test_the_status_shows_stage_guards_and_decisions(server: ModelsServer, run: Any) -> None:
    server.answers[ONE] = (200, told(used(rollout()), 42))
    code, out, err = run("status", "r1")
    assert (code, err) == (0, "")
    head, progress, _, header, errors, latency, *rest = out.splitlines()
    assert head == "chat@2 beside chat@1: running"
    assert progress == (
        "stage 1 of 5: 5 % of users, held for 42 of 300 s; candidate 100 requests, stable version"
        " 100"
    )
    assert words(header) == "guard limit candidate stable over the limit by says"
    assert words(errors).startswith("max_error_rate 0.02 0.1 - 0.08 (")
    assert words(latency).startswith("max_latency_ratio 1.2 ")
    assert latency.split()[-1] in ("unknown", "fine", "worse")
    assert any(line.startswith("shadow: 0 mirrored") for line in rest)
    assert words(rest[-1]).endswith("started 5 % chat@2 beside chat@1")


def test_watching_says_each_decision_once_and_how_it_ended(server: ModelsServer, run: Any) -> None:
    server.answers[ONE] = deque((200, state) for state in life())
    code, out, _ = run("status", "r1", "--watch")
    assert code == 1
    assert [line.split()[2] for line in out.splitlines()] == [
        "started",
        "paused",
        "resumed",
        "aborted",
    ]


def test_watching_ends_well_with_a_promotion(server: ModelsServer, run: Any) -> None:
    made = rollout()
    running = told(made)
    made.begin_promotion()
    made.promoted(BEGAN + 9, "every stage is passed")
    server.answers[ONE] = deque([(200, running), (200, told(made))])
    code, out, _ = run("status", "r1", "--watch")
    assert code == 0
    assert out.splitlines()[-1].split()[2] == "promoted"


def test_on_a_terminal_the_whole_picture_is_shown_anew() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=120)
    states = [read(state, Told) for state in life()]
    assert rollout_shown._live(console, iter(states)).state == "aborted"
    shown = console.file.getvalue()
    for state in ("running", "paused", "aborted"):
        assert f"{state}" in shown
    assert "max_latency_ratio" in shown


def test_json_is_the_last_that_the_server_said(server: ModelsServer, run: Any) -> None:
    states = life()
    server.answers[ONE] = deque((200, state) for state in states)
    code, out, _ = run("status", "r1", "--watch", "--json")
    assert (code, json.loads(out)) == (1, json.loads(states[-1]))
    server.answers[ONE] = (200, states[0])
    code, out, _ = run("status", "r1", "--json")
    assert (code, json.loads(out)) == (0, json.loads(states[0]))


def test_a_start_has_a_flag_for_everything(server: ModelsServer, run: Any) -> None:
    server.answers[f"POST {PATH}"] = (202, told(rollout()))
    flags = "--stages 5,50,100 --stage-seconds 60 --max-stage-seconds 90 --shadow-percent 1"
    guards = "--max-error-rate 0.02 --max-error-increase 0.01 --max-latency-ratio 1.2"
    code, out, _ = run(
        "start", "chat@2", *flags.split(), *guards.split(), "--max-ttft-ratio", "1.5"
    )
    assert (code, out) == (0, "rollout r1: chat@1 -> chat@2\n")
    assert server.requests[0][1] == {
        "name": "chat",
        "candidate": "chat@2",
        "stages": [5, 50, 100],
        "stage_seconds": 60,
        "max_stage_seconds": 90,
        "shadow_percent": 1,
        "guards": {
            "max_error_rate": 0.02,
            "max_error_increase": 0.01,
            "max_latency_ratio": 1.2,
            "max_ttft_ratio": 1.5,
        },
    }


def test_a_start_may_be_watched_to_its_end(server: ModelsServer, run: Any) -> None:
    states = life()
    server.answers[f"POST {PATH}"] = (202, states[0])
    server.answers[ONE] = deque((200, state) for state in states[1:])
    code, out, _ = run("start", "chat@2", "--max-error-rate", "0.02", "--watch")
    assert code == 1
    assert out.splitlines()[0] == "rollout r1: chat@1 -> chat@2"
    assert out.splitlines()[-1].split()[2] == "aborted"


@pytest.mark.parametrize("stages", ["5;10", "5,nan", "inf", ""])
def test_stages_that_are_no_numbers_are_a_wrong_command_line(run: Any, stages: str) -> None:
    code, _, err = run("start", "chat@2", "--stages", stages)
    assert code == 2
    assert "expected numbers, as in 5,25,100" in err


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "flag",
    [
        "--max-error-rate",
        "--max-error-increase",
        "--max-latency-ratio",
        "--max-ttft-ratio",
        "--stage-seconds",
        "--max-stage-seconds",
        "--shadow-percent",
    ],
)
def test_what_is_no_number_is_refused_by_its_flag(run: Any, flag: str, value: str) -> None:
    code, _, err = run("start", "chat@2", flag, value)
    assert code == 2
    assert f"'{flag}': expected a number, got {value}" in err


def test_the_list_has_a_line_a_rollout(server: ModelsServer, run: Any) -> None:
    server.answers[f"GET {PATH}"] = (200, listed(rollout("r2"), rollout("r1")))
    code, out, _ = run("list")
    header, first, second = out.splitlines()
    assert code == 0
    assert words(header) == "id stable candidate state users began"
    assert words(first).startswith("r2 chat@1 chat@2 running 5 % ")
    assert second.startswith("r1")


@pytest.mark.parametrize("operation", ["pause", "resume", "promote", "abort"])
def test_each_operation_says_what_became_of_it(
    server: ModelsServer, run: Any, operation: str
) -> None:
    server.answers[f"POST {PATH}/r1/{operation}"] = (200, told(rollout()))
    assert run(operation, "r1") == (0, "r1 running\n", "")
    code, out, _ = run(operation, "r1", "--json")
    assert (code, json.loads(out)["rollout_id"]) == (0, "r1")


def test_what_the_server_refuses_is_one_line(server: ModelsServer, run: Any) -> None:
    server.answers[ONE] = (404, refusal("rollout_not_found", "there is no rollout 'r1'"))
    for more in ([], ["--watch"]):
        assert run("status", "r1", *more) == (1, "", "error: there is no rollout 'r1'\n")


def test_without_a_server_the_exit_code_is_4(run: Any) -> None:
    code, _, err = run("list", url="http://127.0.0.1:1")
    assert code == 4
    assert "no server answers" in err


def test_ctrl_c_leaves_the_rollout_running_and_says_so(
    server: ModelsServer, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    server.answers[ONE] = (200, told(rollout()))
    monkeypatch.setattr(rollout_shown.time, "sleep", interrupt)
    code, out, err = run("status", "r1", "--watch")
    assert code == 130
    assert len(out.splitlines()) == 1
    assert err == "the rollout goes on; `headrace rollout abort r1` ends it\n"
