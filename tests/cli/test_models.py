import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.cli import loading as waiting
from headrace.cli import main
from models_server import (
    BREAK,
    EVENTS,
    HOLD,
    ModelsServer,
    endpoint,
    loading,
    model,
    refusal,
    report,
)
from real_server import command, environment

LOAD = ("load", "chat=smollm2")
LOADING = (202, {"model_id": "chat@2", "state": "loading"})


@pytest.fixture
def server() -> Iterator[ModelsServer]:
    """Shadows the real one: what is asked here, a script answers."""
    with ModelsServer() as running:
        running.answers["POST /api/v1/models/load"] = LOADING
        running.answers["GET /api/v1/models/chat@2"] = (200, loading())
        yield running


@pytest.fixture
def run(server: ModelsServer, capfd: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str, url: str = server.url) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["models", *arguments, "--url", url])
        out, err = capfd.readouterr()
        assert "\x1b" not in out + err
        return int(end.value.code or 0), out, err

    return run


def words(line: str) -> str:
    return " ".join(line.split())


def test_the_list_has_a_line_a_version_and_marks_the_active_one(
    server: ModelsServer, run: Any
) -> None:
    versions = [
        model("chat@1", state="active", active=True, leases=3),
        loading("chat@2", phase="fetching", progress=0.256),
        model("chat@3", state="failed", reason="[Errno 2] no such file"),
        model("chat@4", state="deprecated", phase="cold", progress=0.0, memory_bytes=0),
    ]
    server.answers["GET /api/v1/models"] = (200, {"models": versions})
    code, out, err = run("list")
    assert (code, err) == (0, "")
    header, *rows, reason = out.splitlines()
    assert words(header) == "model state phase health memory runs on leases"
    assert words(rows[0]) == "* chat@1 active - 1.00 200 MiB native-avx2 w8a16 3"
    assert words(rows[1]) == "chat@2 loading fetching 26% - 200 MiB - 0"
    assert words(rows[3]) == "chat@4 deprecated cold 1.00 - native-avx2 w8a16 0"
    assert reason == "chat@3: [Errno 2] no such file"


def test_the_list_tells_how_upstreams_do(server: ModelsServer, run: Any) -> None:
    endpoints = [
        endpoint("#0", kind="worker"),
        endpoint("gpu-1", in_flight=3, latency_seconds=0.2104),
        endpoint("gpu-2", taking=False, breaker="open", reason="it answered 500"),
        endpoint("gpu-3", taking=False, reason="cannot connect"),
        endpoint("gpu-4"),
    ]
    versions = [model("gpt@1", executor="upstream-vllm", precision=None, endpoints=endpoints)]
    server.answers["GET /api/v1/models"] = (200, {"models": versions})
    _, out, _ = run("list")
    _, row, *lines = out.splitlines()
    assert words(row) == "gpt@1 ready - 1.00 200 MiB upstream-vllm 0"
    assert lines == [
        "gpt@1 upstream gpu-1: 3 in flight, 0.210 s to the first byte",
        "gpt@1 upstream gpu-2: out (breaker open): it answered 500",
        "gpt@1 upstream gpu-3: out: cannot connect",
        "gpt@1 upstream gpu-4: 0 in flight",
    ]


def test_json_is_what_the_server_said_and_nothing_else(server: ModelsServer, run: Any) -> None:
    raw = json.dumps({"models": [model()], "of_a_newer_server": 1}, indent=3)
    server.answers["GET /api/v1/models"] = (200, raw.encode())
    assert run("list", "--json") == (0, f"{raw}\n", "")


def test_a_load_waits_and_says_how_far_it_is(server: ModelsServer, run: Any) -> None:
    server.streams.append([model("chat@1"), loading(), loading(progress=0.9), model()])
    code, out, err = run(*LOAD)
    assert code == 0
    assert out.startswith("chat@2 loaded in ")
    assert err == "chat@2: fetching\n"


def test_a_load_takes_the_flags_of_serve(server: ModelsServer, run: Any) -> None:
    flags = "--version 7 --executor native --kv-cache-memory 64MiB --no-prefix-caching"
    more = "--replicas 2 --retain cold --idle-unload-after 1.5"
    assert run(*LOAD, *flags.split(), *more.split(), "--no-wait") == (0, "chat@2 loading\n", "")
    assert server.requests[0][1] == {
        "name": "chat",
        "source": "smollm2",
        "version": 7,
        "engine": {"executor": "native", "kv_cache_memory": "64MiB", "prefix_caching": False},
        "replicas": 2,
        "retain": "cold",
        "idle_unload_after": 1.5,
    }


def test_a_load_outlives_streams_that_end_or_break(
    server: ModelsServer, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_PAUSE", 0.0)
    server.streams.extend([[loading()], [loading(), BREAK], [loading(phase="warming"), model()]])
    code, out, err = run(*LOAD)
    assert (code, out[:13]) == (0, "chat@2 loaded")
    assert err.splitlines() == ["chat@2: fetching", "chat@2: warming"]


def test_where_too_many_watch_a_load_is_asked_for(
    server: ModelsServer, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_PAUSE", 0.0)
    server.answers[EVENTS] = (503, refusal("unavailable", "100 others watch already."))
    server.answers["GET /api/v1/models/chat@2"] = (200, model())
    code, out, _ = run(*LOAD)
    assert (code, out[:13]) == (0, "chat@2 loaded")


def test_a_version_that_went_between_two_streams_is_not_waited_for(
    server: ModelsServer, run: Any
) -> None:
    server.answers["GET /api/v1/models/chat@2"] = (404, refusal("model_not_found", "no chat@2"))
    server.streams.append([HOLD])
    assert run(*LOAD) == (1, "", "error: no chat@2\n")


def test_a_load_that_fails_says_why(server: ModelsServer, run: Any) -> None:
    failed = model(state="failed", reason="out of\nmemory")
    server.streams.extend([[loading(), failed]] * 2)
    code, out, err = run(*LOAD)
    assert (code, out) == (1, "")
    assert err.endswith("error: chat@2 failed to load: out of memory\n")
    code, out, _ = run(*LOAD, "--json")
    assert (code, json.loads(out)) == (1, failed)


def test_a_version_unloaded_while_it_loads_is_no_success(server: ModelsServer, run: Any) -> None:
    server.streams.append([loading(), model(state="unloading")])
    code, out, err = run(*LOAD)
    assert (code, out) == (1, "")
    assert err.endswith("error: chat@2 was unloaded before it was ready\n")


def test_json_of_a_load_is_the_version_at_its_end(server: ModelsServer, run: Any) -> None:
    active = model(state="active", active=True)
    server.streams.append([model("chat@1"), loading(), active, model("chat@3")])
    code, out, _ = run(*LOAD, "--json")
    assert (code, json.loads(out)) == (0, active)
    code, out, err = run(*LOAD, "--no-wait", "--json")
    assert (code, json.loads(out), err) == (0, LOADING[1], "")


def test_ctrl_c_leaves_the_load_running_and_says_so(server: ModelsServer) -> None:
    server.streams.append([loading(), HOLD])
    arguments = command("models", *LOAD, "--url", server.url, "--json")
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "chat@2: fetching\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.startswith("chat@2 goes on loading")
    assert [route for route, _ in server.requests if "unload" in route] == []


def test_a_source_without_a_name_is_a_wrong_command_line(run: Any, server: ModelsServer) -> None:
    code, out, err = run("load", "smollm2")
    assert (code, out) == (2, "")
    assert "give it a name, as in chat=smollm2" in err
    assert server.requests == []
    code, _, err = run("load", "ch@t=smollm2")
    assert (code, "as in chat=smollm2\n" in err) == (2, True)
    assert run("load", "chat=smollm2", "--retain", "hot")[0] == 2
    assert run("load", "")[0] == 2


def test_an_unsafe_version_is_a_table_and_exit_code_3(server: ModelsServer, run: Any) -> None:
    server.answers["GET /api/v1/models/chat@2/swap/safety"] = (200, report(safe=False))
    code, out, err = run("safety", "chat@2")
    assert (code, err) == (3, "")
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["check", "result"],
        ["health_score", "failed"],
        ["not_already_active", "passed"],
    ]
    server.answers["GET /api/v1/models/chat@2/swap/safety"] = (200, report(safe=True))
    assert run("safety", "chat@2")[0] == 0


def test_an_unsafe_swap_is_the_same_table_and_exit_code(server: ModelsServer, run: Any) -> None:
    body = refusal("unsafe_swap", "not safe", safety=report(safe=False))
    server.answers["POST /api/v1/models/swap"] = (400, body)
    code, out, err = run("swap", "chat@2")
    assert code == 3
    assert "health_score        failed  0.50, low" in out
    assert err == "error: chat@2 cannot become active: health_score (0.50, low)\n"
    code, out, _ = run("swap", "chat@2", "--json")
    assert (code, json.loads(out)) == (3, body)


def test_a_swap_says_what_answers_now(server: ModelsServer, run: Any) -> None:
    answer = {"previous": "chat@1", "active": "chat@2", "duration_ms": 12.4}
    server.answers["POST /api/v1/models/swap"] = (200, answer)
    server.answers["POST /api/v1/models/rollback"] = (200, answer | {"previous": None})
    flags = ("--mode", "queue", "--source", "smollm2", "--max-num-seqs", "4")
    assert run("swap", "chat@2", *flags) == (0, "chat@1 -> chat@2 in 12 ms\n", "")
    assert server.requests[0][1] == {
        "model_id": "chat@2",
        "mode": "queue",
        "source": "smollm2",
        "engine": {"max_num_seqs": 4},
    }
    assert run("rollback", "chat") == (0, "chat@2 in 12 ms\n", "")


@pytest.mark.parametrize(
    ("route", "arguments"),
    [
        ("swap", ("swap", "chat@2", "--mode", "queue", "--source", "smollm2")),
        ("rollback", ("rollback", "chat", "--json")),
    ],
)
def test_ctrl_c_in_a_swap_says_that_it_goes_on(
    server: ModelsServer, route: str, arguments: tuple[str, ...]
) -> None:
    asked = server.hold(f"POST /api/v1/models/{route}")
    with subprocess.Popen(
        command("models", *arguments, "--url", server.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert asked.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == "what has begun goes on; `headrace models history chat` shows how it ends\n"


def test_the_server_may_be_named_by_the_environment(
    server: ModelsServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server.answers["GET /api/v1/models"] = (200, {"models": [model()]})
    monkeypatch.setenv("HEADRACE_URL", server.url)
    with pytest.raises(SystemExit) as end:
        main(["models", "list"])
    assert (end.value.code or 0, "chat@2" in capfd.readouterr().out) == (0, True)
    with pytest.raises(SystemExit) as end:  # what is said on the command line wins
        main(["models", "list", "--url", "http://127.0.0.1:9"])
    assert end.value.code == 4


def test_unload_names_every_version_that_goes(server: ModelsServer, run: Any) -> None:
    going = [{"model_id": f"chat@{version}", "state": "unloading"} for version in (1, 2)]
    server.answers["POST /api/v1/models/chat/unload"] = (202, {"models": going})
    assert run("unload", "chat") == (0, "chat@1 unloading\nchat@2 unloading\n", "")


def test_history_is_a_line_a_change(server: ModelsServer, run: Any) -> None:
    swap = {
        "kind": "swap",
        "name": "chat",
        "previous": "chat@1",
        "active": "chat@2",
        "who": "http 127.0.0.1",
        "started_at": 1_700_000_000.0,
        "ended_at": 1_700_000_000.25,
        "outcome": "done",
        "detail": None,
    }
    load = swap | {"kind": "load", "previous": None, "ended_at": None, "outcome": "undone"}
    load["detail"] = long = "no such file: " + "models/" * 60
    server.answers["GET /api/v1/models/history?name=chat&limit=2"] = (
        200,
        {"changes": [swap, load]},
    )
    code, out, err = run("history", "chat", "--limit", "2")
    assert (code, err) == (0, "")
    header, first, second, detail = out.splitlines()
    assert max(map(len, (header, first, second))) < 120  # whatever there is to say of a change
    assert detail.endswith(f":20 load chat: {long}")
    assert words(first).endswith(":20 swap chat chat@1 chat@2 done 250 ms http 127.0.0.1")
    assert words(second).endswith(":20 load chat - chat@2 undone - http 127.0.0.1")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_refusal_is_one_line_and_exit_code_1(
    server: ModelsServer, run: Any, more: list[str]
) -> None:
    body = refusal("conflict", "chat@2 is active")
    server.answers["POST /api/v1/models/chat@2/unload"] = (409, body)
    code, out, err = run("unload", "chat@2", *more)
    assert (code, err) == (1, "error: chat@2 is active\n")
    assert (json.loads(out) if more else out) == (body if more else "")


@pytest.mark.parametrize("code", ["invalid_configuration", "invalid_model_file"])
def test_what_would_stop_a_start_is_a_refusal_here(
    server: ModelsServer, run: Any, code: str
) -> None:
    server.answers["POST /api/v1/models/load"] = (500, refusal(code, "no"))
    assert run(*LOAD) == (1, "", "error: no\n")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://[x"])
def test_no_server_is_one_line_and_exit_code_4(run: Any, url: str) -> None:
    code, out, err = run("list", "--json", url=url)
    assert (code, out) == (4, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_help_loads_nothing_heavy() -> None:
    heavy = ("httpx", "msgspec", "rich.table", "numpy")
    code = (
        "import sys; from headrace.cli import main\n"
        "try: main(['models', 'load', '--help'])\n"
        f"except SystemExit: print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    )
    arguments = [command()[0], "-c", code]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    for flag in ("--retain <warm|cold|none>", "--max-num-seqs", "--no-wait"):
        assert flag in done.stdout
