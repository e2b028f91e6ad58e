import subprocess
import sys

import pytest

from headrace import __version__
from headrace.cli import main
from real_server import command, environment


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "version") == (0, f"headrace {__version__}\n", "")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for name in ("serve", "chat", "doctor", "models", "rollout", "version"):
        assert f"\n  {name} " in out


def test_an_unknown_option_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "serve", "--prot", "1")
    assert (code, out) == (2, "")
    assert err.startswith("error: No such option: --prot")
    assert err.count("\n") == 1


def test_an_unknown_command_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "sevre")
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert code == 2
    assert "Commands:" in out + err


def test_help_and_errors_load_nothing_heavy() -> None:
    heavy = {"numpy", "openvino", "pydantic_settings", "fastapi", "httpx", "tokenizers"}
    code = (
        "import sys; from headrace.cli import main\n"
        "try: main(['serve', '--help'])\n"
        f"except SystemExit: print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        command("version"), capture_output=True, text=True, check=True, env=environment()
    )
    assert done.stdout == f"headrace {__version__}\n"
