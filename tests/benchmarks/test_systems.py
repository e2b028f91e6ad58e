import asyncio
import os
import sys
from pathlib import Path

import pytest
from harness.load import Load
from harness.measure import measure
from harness.peers import MissingPeerError, Setup, create
from harness.prompts import Prompts
from harness.results import Plan
from harness.systems import Command, Library, Server, StartError
from harness.weights import Weights
from scripted_server import DONE, TEXT, USAGE, listening, streaming

LIBRARY = """
import sys, time, json
print("ready", flush=True)
for line in sys.stdin:
    load, now = json.loads(line), time.monotonic()
    samples = [
        {"sent": now, "arrivals": [now + 0.1], "prompt_tokens": len(prompt),
         "completion_tokens": load["output_tokens"]}
        for prompt in load["prompts"][: load["min_requests"]]
    ]
    print(json.dumps({"samples": samples, "started": now, "full_until": now + 1}), flush=True)
"""


def python(code: str, log: Path) -> Command:
    return Command(arguments=[sys.executable, "-c", code], log=log)


def load(users: int) -> Load:
    return Load([[number] for number in range(64)], users, 3, 2 * users, 0.0)


def setup(tmp_path: Path) -> Setup:
    return Setup(
        weights=Weights(tmp_path / "model.gguf", tmp_path),
        folder=tmp_path,
        max_concurrency=4,
        context=256,
        num_threads=2,
        llama_server="no-such-llama-server",
        vllm="no-such-vllm",
    )


async def test_a_server_that_runs_already_is_measured_and_left_alone() -> None:
    async with listening(streaming(TEXT, USAGE, DONE)) as script:
        server = Server("theirs", script.url, "tiny")
        await server.start()
        run = await server.run(load(4))
        await server.close()
        assert server.pid is None
    assert len(run.samples) >= 8
    assert {sample.error for sample in run.samples} == {None}


async def test_a_server_that_ends_at_its_start_is_an_error_that_names_its_log(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    command = python("raise SystemExit('no model')", log)
    server = Server("ours", "http://127.0.0.1:9", "tiny", command=command)
    with pytest.raises(StartError, match=str(log)):
        await server.start()
    await server.close()
    assert "no model" in log.read_text()


@pytest.mark.parametrize("not_yet", [0, 3])
async def test_only_a_server_that_is_not_ready_yet_is_asked_again(not_yet: int) -> None:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        status = b"503 Wait" if len(script.requests) <= not_yet else b"404 No Such Model"
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status)

    async with listening(answer) as script:
        server = Server("theirs", script.url, "tiny")
        with pytest.raises(StartError, match=r"refused the first request.*404"):
            await server.start()
        await server.close()
    assert len(script.requests) == not_yet + 1


async def test_a_library_answers_a_load_from_its_own_process(tmp_path: Path) -> None:
    library = Library("theirs", python(LIBRARY, tmp_path / "log"))
    await library.start()
    pid = library.pid
    assert pid is not None
    run = await library.run(load(2))
    await library.close()
    assert len(run.samples) == 4
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_cancelled_close_leaves_no_process_behind(tmp_path: Path) -> None:
    stubborn = (
        "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); input()"
    )
    command = python(stubborn, tmp_path / "log")
    process = await command.start(piped=True)
    assert process.stdout is not None
    await process.stdout.readline()
    closing = asyncio.create_task(command.close())
    await asyncio.sleep(0)  # it has asked by now, and waits
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def test_a_library_that_dies_is_an_error(tmp_path: Path) -> None:
    library = Library("theirs", python("print('ready'); input(); exit(3)", tmp_path / "log"))
    await library.start()
    with pytest.raises(StartError, match="code 3"):
        await library.run(load(1))
    await library.close()


@pytest.mark.parametrize("name", ["llama.cpp:file", "vllm"])
def test_a_missing_peer_says_what_it_lacks(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingPeerError, match="is not on the path"):
        create(name, setup(tmp_path))


def test_an_unknown_system_is_an_error_that_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"headrace-openvino, openvino-genai, llama\.cpp, vllm"):
        create("lama", setup(tmp_path))


async def test_every_system_gets_every_load_and_is_stopped_after_it(tmp_path: Path) -> None:
    plan = Plan([1, 2], prompt_tokens=1, output_tokens=3, rounds=2, seconds=0.0, starts=2)
    async with listening(streaming(TEXT, USAGE, DONE)) as script:
        library = Library("library", python(LIBRARY, tmp_path / "log"))
        systems = [Server("server", script.url, "tiny"), library]
        said: list[str] = []
        results, skipped = await measure(systems, plan, _Numbered(), said.append)
    assert not skipped
    assert library.pid is None
    assert [[level.concurrency for level in found.levels] for found in results] == [[1, 2], [1, 2]]
    assert [len(found.start_seconds) for found in results] == [0, 2]
    assert results[1].peak_memory
    assert results[0].levels[0].summary.wrong_counts == results[0].levels[0].summary.num_requests
    assert results[1].levels[1].summary.num_requests == 8
    assert len(said) == 2 * 2 + 2 * 2 * 2


class _Numbered(Prompts):
    """Prompts of one token each, their number."""

    def __init__(self) -> None:
        self._prompts = [[number] for number in range(500)]


async def test_a_system_that_does_not_come_up_is_skipped_with_its_last_words(
    tmp_path: Path,
) -> None:
    good = Library("good", python(LIBRARY, tmp_path / "good"))
    bad = Library("bad", python("raise SystemExit('no such architecture')", tmp_path / "bad"))
    plan = Plan([1], prompt_tokens=1, output_tokens=1, rounds=1, seconds=0.0, starts=2)
    results, skipped = await measure([bad, good], plan, _Numbered(), lambda _: None)
    assert [found.name for found in results] == ["good"]
    assert list(skipped) == ["bad"]
    assert "code 1, last words 'no such architecture'" in skipped["bad"]
    assert (good.pid, bad.pid) == (None, None)


async def test_a_system_that_dies_under_load_takes_no_other_with_it(tmp_path: Path) -> None:
    good = Library("good", python(LIBRARY, tmp_path / "good"))
    bad = Library("bad", python("print('ready'); input(); exit(3)", tmp_path / "bad"))
    plan = Plan([1], prompt_tokens=1, output_tokens=1, rounds=1, seconds=0.0, starts=1)
    with pytest.raises(StartError, match="code 3"):
        await measure([good, bad], plan, _Numbered(), lambda _: None)
    assert good.pid is None
