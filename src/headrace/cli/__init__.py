"""The `headrace` command. Each command imports what it needs when it runs, so help is immediate."""

import sys

import typer

from headrace import __version__
from headrace.cli.session import CommandError
from headrace.errors import ConfigurationError, HeadraceError, ModelFileError


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit; a known error is one line on stderr."""
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
    try:
        # Without standalone mode the error is ours to print: one line instead of a box.
        return int(_app()(arguments, prog_name="headrace", standalone_mode=False) or 0)
    except typer.TyperException as error:
        return _complain(f"{error.format_message().rstrip('.')}; see `headrace --help`")
    except (ConfigurationError, ModelFileError) as error:
        return _complain(error.message)
    except CommandError as error:
        return _complain(error.message, error.exit_code)
    except HeadraceError as error:
        return _complain(error.message, exit_code=1)
    except (typer.Abort, KeyboardInterrupt):
        return 130  # what a shell shows after Ctrl-C


def _complain(sentence: str, exit_code: int = 2) -> int:
    typer.echo("error: " + " ".join(sentence.split()), err=True)
    return exit_code


def _app() -> typer.Typer:
    from headrace.cli import chat, doctor, models, rollout, serve

    app = typer.Typer(
        name="headrace",
        help="Serve models: `headrace serve smollm2`, then talk to it with `headrace chat`.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help comes twice as fast
    )
    app.command()(serve.serve)
    app.command()(chat.chat)
    app.command()(doctor.doctor)
    app.command()(version)
    app.add_typer(models.app, name="models")
    app.add_typer(rollout.app, name="rollout")
    return app


def version() -> None:
    """Print the version."""
    typer.echo(f"headrace {__version__}")
