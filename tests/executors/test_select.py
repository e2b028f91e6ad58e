"""Which executor runs, and what is said when it is not the native one."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from executors.conftest import require_native_kernels
from executors.tiny import CONFIG, tiny_model
from headrace.errors import ConfigurationError
from headrace.executors.config import ExecutorConfig
from headrace.executors.select import Choice, choose_executor, create_executor


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python without headrace_native."""
    monkeypatch.delitem(sys.modules, "headrace.executors.native.kernels", raising=False)
    monkeypatch.delattr("headrace.executors.native.kernels", raising=False)
    monkeypatch.setitem(sys.modules, "headrace_native", None)


@pytest.mark.usefixtures("native_kernels")
def test_the_native_one_runs_where_it_is_there() -> None:
    assert choose_executor(ExecutorConfig()) == Choice("native")
    assert choose_executor(ExecutorConfig(executor="native"), CONFIG) == Choice("native")


def test_openvino_runs_where_it_is_asked_for() -> None:
    assert choose_executor(ExecutorConfig(executor="openvino"), CONFIG) == Choice("openvino")


@pytest.mark.usefixtures("native_kernels")
@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"precision": "fp32"}, "no precision 'fp32'"),
        ({"kv_cache_precision": "fp16"}, "no kv_cache_precision 'fp16'"),
    ],
)
def test_what_the_kernels_lack_is_left_to_openvino_or_refused(
    asked: dict[str, Any], reason: str
) -> None:
    choice = choose_executor(ExecutorConfig(**asked))
    assert choice.name == "openvino"
    assert choice.reason is not None
    assert reason in choice.reason
    with pytest.raises(ConfigurationError, match=reason) as error:
        choose_executor(ExecutorConfig(executor="native", **asked))
    assert error.value.param == "executor"


@pytest.mark.usefixtures("native_kernels")
def test_a_model_that_does_not_fit_is_left_to_openvino() -> None:
    choice = choose_executor(ExecutorConfig(), replace(CONFIG, head_dim=4096))
    assert choice.name == "openvino"
    assert choice.reason is not None
    assert "4096" in choice.reason


@pytest.mark.usefixtures("absent")
def test_without_the_kernels_openvino_runs_and_the_log_says_why() -> None:
    with capture_logs() as lines:
        executor = create_executor(tiny_model(), ExecutorConfig(num_threads=1), lambda *_: None)
    executor.close()
    assert executor.name == "openvino"
    (line,) = [line for line in lines if line["event"] == "executor.not_native"]
    assert "not installed" in line["reason"]


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize(
    ("compiler", "ci", "outcome"),
    [
        (None, "", pytest.skip.Exception),
        (None, "true", pytest.fail.Exception),
        ("/usr/bin/c++", "", pytest.fail.Exception),
    ],
)
def test_tests_of_the_kernels_are_skipped_only_where_they_cannot_be_built(
    monkeypatch: pytest.MonkeyPatch, compiler: str | None, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr("shutil.which", lambda _name: compiler)
    with pytest.raises(outcome, match="native kernels"):
        require_native_kernels()


@pytest.mark.usefixtures("absent")
def test_native_without_the_kernels_says_how_to_get_them() -> None:
    with pytest.raises(ConfigurationError, match="pip install headrace-native") as error:
        choose_executor(ExecutorConfig(executor="native"))
    assert error.value.param == "executor"


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("precision", ["w8a8", "w4a16"])
def test_a_precision_that_only_the_kernels_have_is_never_swapped(precision: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"'{precision}' needs the native") as error:
        choose_executor(ExecutorConfig(precision=precision))
    assert error.value.param == "precision"


@pytest.mark.usefixtures("native_kernels")
def test_a_level_that_the_machine_lacks_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ISA", "mmx")
    with pytest.raises(ConfigurationError, match="HEADRACE_ISA"):
        choose_executor(ExecutorConfig())


@pytest.mark.parametrize("native_too", [False, True])
def test_a_level_asked_for_in_vain_is_told_once(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, *, native_too: bool
) -> None:
    monkeypatch.setenv("HEADRACE_ISA", "scalar")
    if native_too:
        request.getfixturevalue("native_kernels")
    executor: Any = "native" if native_too else "openvino"
    config = ExecutorConfig(executor=executor, num_threads=1)
    with capture_logs() as lines:
        create_executor(tiny_model(), config, lambda *_: None).close()
    told = [line for line in lines if line["event"] == "executor.level_ignored"]
    assert len(told) == (0 if native_too else 1)
    for line in told:
        assert line["log_level"] == "warning"
        assert "HEADRACE_ISA=scalar has no effect" in line["reason"]


@pytest.mark.parametrize("executor", ["openvino", "native", "auto"])
@pytest.mark.parametrize("num_threads", [0, -1, 1025, 1 << 40])
def test_a_number_of_threads_out_of_range_is_refused(executor: Any, num_threads: int) -> None:
    config = ExecutorConfig(executor=executor, num_threads=num_threads)
    with pytest.raises(ConfigurationError, match=r"num_threads is .* from 1 to 1024") as error:
        create_executor(tiny_model(), config, lambda *_: None)
    assert error.value.param == "num_threads"


@pytest.mark.usefixtures("native_kernels")
def test_only_the_library_of_the_executor_that_runs_is_loaded() -> None:
    program = """
import sys
from executors.tiny import tiny_model
from headrace.executors.config import ExecutorConfig
from headrace.executors.select import create_executor
create_executor(tiny_model(), ExecutorConfig(), lambda *_: None).close()
print(sorted({"openvino", "headrace_native"} & set(sys.modules)))
"""
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path}\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "['headrace_native']\n"
