import json
import logging
import re
import shutil
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import structlog

from headrace.telemetry.lines import Lines
from headrace.telemetry.logging import FILE_NAME, configure_logging, lines_together


def test_json_lines_have_event_level_and_time(tmp_path: Path) -> None:
    configure_logging(log_format="json", log_dir=tmp_path)
    structlog.get_logger().info("model.ready", model="chat@1")
    line = json.loads((tmp_path / FILE_NAME).read_text())
    assert (line["event"], line["level"], line["model"]) == ("model.ready", "info", "chat@1")
    assert line["timestamp"].endswith("Z")


def test_secrets_are_left_out(tmp_path: Path) -> None:
    configure_logging(log_format="json", log_dir=tmp_path)
    structlog.get_logger().info("request", authorization="Bearer hush", api_key="hush", path="/")
    text = (tmp_path / FILE_NAME).read_text()
    assert "hush" not in text
    assert json.loads(text)["path"] == "/"


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_trace_shows_no_values_of_variables(tmp_path: Path, log_format: str) -> None:
    configure_logging(log_format=log_format, log_dir=tmp_path)
    prompt = "a very private " + "prompt"
    try:
        1 / (len(prompt) * 0)
    except ZeroDivisionError:
        structlog.get_logger().exception("request.fault")
    text = (tmp_path / FILE_NAME).read_text()
    assert "ZeroDivisionError" in text
    assert prompt not in text


def test_a_terminal_gets_no_control_characters(tmp_path: Path) -> None:
    configure_logging(log_format="text", log_dir=tmp_path)
    structlog.get_logger().info("http.request", path="/x\x1b[31m\x07\0\u202e\x9b\ny/é")
    logging.getLogger("library").warning("odd: %s", "\x1b[31m")
    text = (tmp_path / FILE_NAME).read_text()
    assert not re.search(r"[^\n\x20-\x7eé]", text)
    assert len(text.splitlines()) == 2
    assert r"/x\\x1b[31m\\x07\\x00\\u202e\\x9b\ny/é" in text


def test_a_trace_gives_a_terminal_no_control_characters(tmp_path: Path) -> None:
    configure_logging(log_format="text", log_dir=tmp_path)
    error = ValueError("/x\x1b[31m\x85\u2028é")
    structlog.get_logger().error("request.fault", exc_info=error)
    logging.getLogger("library").error("fault", exc_info=error)
    text = (tmp_path / FILE_NAME).read_text()
    assert text.count(r"ValueError: /x\x1b[31m\x85\u2028é") == 2
    assert not re.search(r"[^\n\x20-\x7eé]", text)


def test_lines_of_libraries_look_the_same(tmp_path: Path) -> None:
    configure_logging(log_format="json", log_dir=tmp_path)
    logging.getLogger("library").warning("%s is odd", "this")
    line = json.loads((tmp_path / FILE_NAME).read_text())
    assert (line["event"], line["level"]) == ("this is odd", "warning")


def test_configuring_twice_does_not_double_lines(tmp_path: Path) -> None:
    for _ in range(2):
        configure_logging(log_format="json", log_dir=tmp_path)
    structlog.get_logger().info("once")
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) == 1


def test_what_is_not_worth_a_line_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(log_format="text")
    structlog.get_logger().debug("health")
    logging.getLogger("uvicorn.error").info("Started server process")
    structlog.get_logger().info("kept")
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("together", [nullcontext, lines_together])
@pytest.mark.parametrize("log", [structlog.get_logger(), logging.getLogger("library")])
def test_a_full_file_is_moved_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: Any, together: Any
) -> None:
    monkeypatch.setattr("headrace.telemetry.logging.MAX_FILE_BYTES", 1000)
    monkeypatch.setattr("headrace.telemetry.logging.KEPT_FILES", 2)
    configure_logging(log_format="text", log_dir=tmp_path)
    with together():
        for number in range(50):
            log.warning(f"é{number}")  # noqa: G004 - both kinds of logger understand it
    files = [tmp_path / f"{FILE_NAME}{end}" for end in (".2", ".1", "")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert all(file.stat().st_size <= 1000 for file in files)
    told = re.findall(r"é(\d+)", "".join(file.read_text() for file in files))
    assert told == [str(number) for number in range(50 - len(told), 50)]


def test_a_line_that_cannot_be_written_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(log_format="json", log_dir=tmp_path)
    (lines,) = (each for each in logging.getLogger().handlers if isinstance(each, Lines))
    monkeypatch.setattr(lines, "stream", StringIO())
    lines.stream.close()
    structlog.get_logger().info("lost")
    logging.getLogger("library").warning("lost too")
    assert capsys.readouterr().err.count("--- Logging error ---") == 2


def test_lines_of_a_moment_are_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure_logging(log_format="json", log_dir=tmp_path)
    written = list[str]()
    (lines,) = (each for each in logging.getLogger().handlers if isinstance(each, Lines))
    monkeypatch.setattr(lines.stream, "write", written.append)
    with lines_together():
        for number in range(3):
            structlog.get_logger().info("http.request", number=number)
        logging.getLogger("library").warning("odd")
        assert not written
    (text,) = written
    told = [json.loads(line) for line in text.splitlines()]
    assert [line.get("number") for line in told] == [0, 1, 2, None]
    structlog.get_logger().info("alone")
    assert len(written) == 2


def test_lines_are_written_whatever_ends_the_moment(tmp_path: Path) -> None:
    configure_logging(log_format="json", log_dir=tmp_path)
    with suppress(ZeroDivisionError), lines_together():
        structlog.get_logger().info("kept")
        _ = 1 / 0
    with lines_together():
        pass
    assert (tmp_path / FILE_NAME).read_text().count("\n") == 1


def test_lines_of_a_moment_that_cannot_be_written_stop_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(log_format="json", log_dir=tmp_path)
    (lines,) = (each for each in logging.getLogger().handlers if isinstance(each, Lines))
    monkeypatch.setattr(lines, "stream", StringIO())
    lines.stream.close()
    with lines_together():
        structlog.get_logger().info("lost")
    assert "--- Logging error ---" in capsys.readouterr().err


def test_another_threads_line_waits_for_the_moment_to_end(tmp_path: Path) -> None:
    configure_logging(log_format="text", log_dir=tmp_path)
    with ThreadPoolExecutor() as threads:
        with lines_together():
            structlog.get_logger().info("first")
            other = threads.submit(structlog.get_logger().info, "second")
            assert not wait([other], timeout=0.05).done
            structlog.get_logger().info("first too")
        other.result(5)
    lines = (tmp_path / FILE_NAME).read_text().splitlines()
    assert ["first" in line for line in lines] == [True, True, False]


@pytest.fixture
def small_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("headrace.telemetry.logging.MAX_FILE_BYTES", 1000)
    configure_logging(log_format="text", log_dir=tmp_path / "logs")
    return tmp_path / "logs" / FILE_NAME


def test_lines_go_on_when_a_file_that_could_not_be_opened_can_be(
    small_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(small_file.parent)
    for number in range(2):
        structlog.get_logger().info("x" * 1000)
        told = capsys.readouterr().err
        assert ("FileNotFoundError" in told, "AttributeError" in told) == (True, False), number
    small_file.parent.mkdir()
    structlog.get_logger().info("again")
    assert "again" in small_file.read_text()


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_a_file_that_somebody_moved_does_not_grow_without_bound(
    small_file: Path, *, is_made_anew: bool
) -> None:
    moved = small_file.rename(small_file.with_name("moved"))
    if is_made_anew:
        small_file.touch()
    for number in range(100):
        structlog.get_logger().info(f"line {number}")
    assert moved.stat().st_size <= 1000
    assert "line 99" in small_file.read_text()
