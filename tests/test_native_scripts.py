"""native/install and native/test over a tool chain that is scripted: what they do when it fails."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[1] / "native"
# A Python whose environment is its folder: pip notes what it is asked and fails where `broken` is;
# the kernels are there where `kernels` is.
PYTHON = """#!/bin/bash
here=$(dirname "$0")
case "$*" in
  *sys.prefix*) echo "$here" ;;
  *"pip"*uninstall*) rm -f "$here/kernels" ;;
  *"pip"*install*)
    echo build >>"$here/builds"
    if [[ -e $here/broken ]]; then echo "no network"; exit 1; fi
    touch "$here/kernels" ;;
  *HEADRACE_ISA*)
    if [[ ${HEADRACE_ISA:-} == mmx ]]; then echo "HEADRACE_ISA is 'mmx'" >&2; exit 1; fi
    echo "Executor: native, scalar" ;;
  *"import headrace_native"*) [[ -e $here/kernels ]] ;;
esac
"""
needs_cmake = pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")
Install = Callable[..., subprocess.CompletedProcess[str]]


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def run(*command: Path | str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in {"CI", "HEADRACE_ISA"}}
    return subprocess.run(
        command, env=environment | variables, capture_output=True, text=True, check=False
    )


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    script(tmp_path / "python", PYTHON)
    script(tmp_path / "compiler", "#!/bin/bash\ncat >/dev/null\n")
    (tmp_path / "native").mkdir()
    for name in ("install", "test"):
        shutil.copy(NATIVE / name, tmp_path / "native")
    return tmp_path


@pytest.fixture
def install(prefix: Path) -> Install:
    def install(*mode: str, **variables: str) -> subprocess.CompletedProcess[str]:
        own = {"CXX": str(prefix / "compiler")}
        return run(prefix / "native/install", prefix / "python", *mode, **(own | variables))

    return install


def num_builds(prefix: Path) -> int:
    builds = prefix / "builds"
    return len(builds.read_text().splitlines()) if builds.exists() else 0


def test_kernels_are_built_once(prefix: Path, install: Install) -> None:
    for _ in range(2):
        done = install()
        assert done.stdout.endswith("Executor: native, scalar\n")
    assert num_builds(prefix) == 1


def test_kernels_that_no_longer_import_are_built_again(prefix: Path, install: Install) -> None:
    install()
    (prefix / "kernels").unlink()
    assert install().stdout.endswith("Executor: native, scalar\n")
    assert num_builds(prefix) == 2


def test_a_failed_build_is_tried_again_after_a_day(prefix: Path, install: Install) -> None:
    (prefix / "broken").touch()
    for _ in range(2):
        done = install()
        assert done.returncode == 0
        assert "Executor: OpenVINO" in done.stdout
        assert done.stdout.endswith("no network)\n")
    assert num_builds(prefix) == 1
    os.utime(prefix / ".native-failed", (0, 0))
    (prefix / "broken").unlink()
    assert install().stdout.endswith("Executor: native, scalar\n")


def test_a_failed_build_is_tried_again_with_other_sources(prefix: Path, install: Install) -> None:
    (prefix / "broken").touch()
    install()
    (prefix / "native/CMakeLists.txt").touch()
    install()
    assert num_builds(prefix) == 2


def test_a_failed_build_is_tried_again_at_once_where_it_must_succeed(
    prefix: Path, install: Install
) -> None:
    (prefix / "broken").touch()
    install()
    done = install("strict")
    assert done.returncode == 1
    assert done.stderr.endswith("no network\n")
    assert num_builds(prefix) == 2


@pytest.mark.parametrize(("stamp", "left"), [("other sources", []), (None, ["kernels"])])
def test_a_failed_build_removes_only_kernels_of_other_sources(
    prefix: Path, install: Install, stamp: str | None, left: list[str]
) -> None:
    install()
    if stamp is None:
        (prefix / ".native").unlink()
    else:
        (prefix / ".native").write_text(stamp)
    (prefix / "broken").touch()
    install()
    assert [path.name for path in prefix.glob("kernels")] == left


def test_without_a_compiler_openvino_serves(install: Install) -> None:
    done = install(CXX="absent")
    assert done.returncode == 0
    assert "C++20 compiler" in done.stdout


def test_kernels_outlive_their_compiler(install: Install) -> None:
    install()
    assert install(CXX="absent").stdout == "Executor: native, scalar\n"


@pytest.mark.parametrize(("mode", "variables"), [(["strict"], {}), ([], {"CI": "true"})])
def test_a_missing_compiler_is_an_error_where_kernels_must_be_there(
    install: Install, mode: list[str], variables: dict[str, str]
) -> None:
    done = install(*mode, CXX="absent", **variables)
    assert done.returncode == 1
    assert done.stderr == (
        "No native kernels: they need a C++20 compiler (Debian and Ubuntu: g++)\n"
    )


def test_a_level_that_is_not_there_is_one_line(install: Install) -> None:
    done = install(HEADRACE_ISA="mmx")
    assert done.returncode == 1
    assert done.stderr == "HEADRACE_ISA is 'mmx'\n"


@pytest.mark.parametrize(("variables", "status"), [({}, 0), ({"CI": "true"}, 1)])
def test_native_tests_without_their_tools_fail_in_ci_alone(
    prefix: Path, variables: dict[str, str], status: int
) -> None:
    done = run(prefix / "native/test", CXX="absent", **variables)
    assert done.returncode == status
    assert "doctest-dev" in done.stderr


def configure(build: Path, levels: str) -> subprocess.CompletedProcess[str]:
    options = ("-DHEADRACE_MODULE=OFF", f"-DHEADRACE_LEVELS={levels}")
    return run("cmake", "-S", NATIVE, "-B", build, *options)


@needs_cmake
def test_every_build_has_the_level_that_any_processor_runs(tmp_path: Path) -> None:
    assert configure(tmp_path, "avx2").returncode == 0
    assert "src/isa/scalar.cpp" in (tmp_path / "compile_commands.json").read_text()


@needs_cmake
def test_a_level_that_is_none_fails_the_build_by_name(tmp_path: Path) -> None:
    done = configure(tmp_path, "scalar;avx3")
    assert done.returncode == 1
    assert "HEADRACE_LEVELS: 'avx3'" in done.stderr
