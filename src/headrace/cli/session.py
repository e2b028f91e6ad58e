"""What commands that ask a running server have in common: its address, JSON, exit codes."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.errors import HeadraceError

if TYPE_CHECKING:  # help is immediate
    from headrace.client import Client

DEFAULT_URL = "http://127.0.0.1:8000"

# A flag's default and no setting, so typer may read it: help waits for no settings to be imported.
Url = Annotated[str, typer.Option(envvar="HEADRACE_URL", help="The server.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the server's JSON, nothing else.")]


class ExitCode(IntEnum):
    """How a command ended; 2 is a wrong command line."""

    DONE = 0
    REFUSED = 1
    UNSAFE = 3
    UNREACHABLE = 4
    INTERRUPTED = 130  # what a shell shows after Ctrl-C


class CommandError(HeadraceError):
    """Ends a command with one line on stderr and an exit code of its own."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def session(url: str, *, as_json: bool) -> Iterator["Client"]:
    """Ask a server; in the end its last answer is printed `as_json`, refusals too."""
    from headrace.client import Client, UnreachableError, UnsafeSwapError

    answers = deque[bytes](maxlen=1)
    try:
        with Client(url, on_answer=answers.append if as_json else None) as client:
            yield client
    except UnreachableError as error:
        raise CommandError(error.message, ExitCode.UNREACHABLE) from error
    except HeadraceError as error:
        _print(answers)
        is_unsafe = isinstance(error, UnsafeSwapError)
        code = ExitCode.UNSAFE if is_unsafe else ExitCode.REFUSED
        raise CommandError(error.message, code) from error
    _print(answers)


def _print(answers: deque[bytes]) -> None:
    for answer in answers:
        typer.echo(answer)
