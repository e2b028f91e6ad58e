import json
import socket
import sys

import pytest

from executors.conftest import require_native_kernels
from headrace.cli import doctor, main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(["doctor", *arguments])
    return int(end.value.code or 0), capsys.readouterr().out


def test_json_holds_every_finding(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "--json")
    facts = json.loads(out)
    assert (code, facts["healthy"]) == (0, True)
    names = {finding["name"] for finding in facts["findings"]}
    assert {
        "headrace",
        "processor",
        "cores",
        "memory",
        "openvino",
        "native kernels",
        "plan",
        "cache",
        "port",
    } <= names


def test_the_executor_that_would_run_and_its_level_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    require_native_kernels()
    monkeypatch.setenv("HEADRACE_ISA", "scalar")
    code, out = run(capsys)
    assert code == 0
    assert "+ native kernels     scalar (HEADRACE_ISA), of " in out
    assert "+ plan               native-scalar, " in out
    monkeypatch.delenv("HEADRACE_ISA")
    code, out = run(capsys)
    assert code == 0
    assert "(HEADRACE_ISA)" not in out
    assert "weights w8a16, KV cache bf16" in out


def test_a_level_that_the_machine_lacks_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    require_native_kernels()
    monkeypatch.setenv("HEADRACE_ISA", "mmx")
    code, out = run(capsys)
    assert code == 1
    assert "! native kernels" in out
    assert "HEADRACE_ISA" in out


def test_without_the_native_kernels_openvino_is_the_plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "headrace.executors.native.kernels", raising=False)
    monkeypatch.delattr("headrace.executors.native.kernels", raising=False)
    monkeypatch.setitem(sys.modules, "headrace_native", None)
    code, out = run(capsys)
    assert code == 0
    assert "- native kernels     the native kernels are not installed: pip install" in out
    assert "+ plan               openvino, " in out


def test_a_taken_port_is_a_note_that_names_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out = run(capsys, "--port", str(port))
    assert code == 0
    assert f"{port}: Address already in use; use --port" in out


def test_a_missing_package_is_named_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    present = doctor._installed
    absent = {"openvino", "huggingface-hub", "huggingface_hub"}
    monkeypatch.setattr(
        doctor, "_installed", lambda name: None if name in absent else present(name)
    )
    code, out = run(capsys)
    assert code == 1
    assert "! openvino" in out
    assert "pip install 'headrace[hf]'" in out


def test_requirements_are_told_from_extras() -> None:
    lines = ["fastapi>=0.115", "uvicorn[standard]>=0.34", 'huggingface_hub>=0.30; extra == "hf"']
    assert list(doctor._requirements(lines)) == [
        ("fastapi", None),
        ("uvicorn", None),
        ("huggingface_hub", "hf"),
    ]
