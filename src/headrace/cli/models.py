"""`headrace models`: what a running server has loaded, and how that is changed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli.engine_flags import with_engine_flags
from headrace.cli.session import DEFAULT_URL, AsJson, ExitCode, Url, session
from headrace.cli.sources import model_of

if TYPE_CHECKING:  # help is immediate
    from headrace.client import Swap

_HELP = """\
See and change the models of a running server.

Exit codes: 0 done, 1 refused or failed to load, 2 wrong command line, 3 unsafe swap, 4 no server
answers, 130 interrupted."""

_LEFT = "what has begun goes on; `headrace models history {0}` shows how it ends"

app = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode=None)

ModelId = Annotated[str, typer.Argument(metavar="MODEL_ID", help="Such as chat@2.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Such as chat.")]
Replicas = Annotated[int | None, typer.Option(min=1, help="Worker processes [1].")]
Retain = Annotated[
    Literal["warm", "cold", "none"] | None,
    typer.Option(help="What a swap leaves of it: its workers, a quick reload, nothing [warm]."),
]
IdleUnloadAfter = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Unused for so long, its workers end.")
]


@app.command("list")
def list_models(*, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show every version; * marks what answers under the model's name."""
    with session(url, as_json=as_json) as client:
        models = client.models.list()
    if not as_json:
        from headrace.cli.tables import print_models

        print_models(models)


@app.command()
@with_engine_flags
def load(
    model: Annotated[
        str,
        typer.Argument(metavar="NAME=SOURCE", help="A path is one on the server's machine."),
    ],
    *,
    url: Url = DEFAULT_URL,
    version: Annotated[
        int | None, typer.Option(min=1, help="Number after the @ [the next one].")
    ] = None,
    replicas: Replicas = None,
    retain: Retain = None,
    idle_unload_after: IdleUnloadAfter = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it is loaded.")] = True,
    as_json: AsJson = False,
    engine: dict[str, Any],
) -> None:
    """Load a version beside what is served; `swap` makes it the active one."""
    from headrace.cli.loading import wait_until_loaded

    named = model_of(model)
    if "name" not in named:
        raise typer.BadParameter(f"{model}: give it a name, as in chat={model}")
    began = time.perf_counter()
    with session(url, as_json=as_json) as client:
        accepted = client.models.load(
            named["name"],
            named["source"],
            version=version,
            engine=engine or None,
            replicas=replicas,
            retain=retain,
            idle_unload_after=idle_unload_after,
        )
        done = accepted.state
        if wait:
            wait_until_loaded(client, accepted.model_id)
            done = f"loaded in {time.perf_counter() - began:.1f} s"
    if not as_json:
        typer.echo(f"{accepted.model_id} {done}")


@app.command()
def safety(model_id: ModelId, *, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Say whether a version may become the active one; the exit code is 3 when it may not."""
    with session(url, as_json=as_json) as client:
        report = client.models.safety(model_id)
    if not as_json:
        from headrace.cli.tables import print_safety

        print_safety(report)
    raise typer.Exit(ExitCode.DONE if report.safe else ExitCode.UNSAFE)


@app.command()
@with_engine_flags
def swap(
    model_id: ModelId,
    *,
    url: Url = DEFAULT_URL,
    mode: Annotated[
        Literal["switch", "queue"] | None,
        typer.Option(
            help="switch: to a loaded version. queue: requests wait while the old version ends and"
            " this one loads [switch]."
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="What to load, with --mode queue; so the flags below.")
    ] = None,
    replicas: Replicas = None,
    retain: Retain = None,
    idle_unload_after: IdleUnloadAfter = None,
    as_json: AsJson = False,
    engine: dict[str, Any],
) -> None:
    """Make a version the active one; requests that run end on the one that took them."""
    from headrace.cli.tables import print_safety
    from headrace.client import UnsafeSwapError

    name = model_id.partition("@")[0]
    with session(url, as_json=as_json) as client, _changing(name, f"swapping to {model_id}"):
        try:
            done = client.models.swap(
                model_id,
                mode=mode,
                source=source,
                engine=engine or None,
                replicas=replicas,
                retain=retain,
                idle_unload_after=idle_unload_after,
            )
        except UnsafeSwapError as error:
            if not as_json:
                print_safety(error.report)
            raise
    if not as_json:
        _print_swap(done)


@app.command()
def rollback(name: Name, *, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Make the version active again that was so before."""
    doing = f"{name}: back to the version before"
    with session(url, as_json=as_json) as client, _changing(name, doing):
        done = client.models.rollback(name)
    if not as_json:
        _print_swap(done)


@app.command()
def unload(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A version, such as chat@1, or a name: all of it."),
    ],
    *,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Take versions away; requests that run end first."""
    with session(url, as_json=as_json) as client:
        accepted = client.models.unload(model)
    if not as_json:
        for each in accepted:
            typer.echo(f"{each.model_id} {each.state}")


@app.command()
def history(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of one model; else of all.")
    ] = None,
    *,
    url: Url = DEFAULT_URL,
    limit: Annotated[int | None, typer.Option(min=1, help="So many, the newest.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what was changed, by whom, and how it ended; the newest first."""
    with session(url, as_json=as_json) as client:
        changes = client.models.history(name, limit=limit)
    if not as_json:
        from headrace.cli.tables import print_history

        print_history(changes)


@contextmanager
def _changing(name: str, doing: str) -> Iterator[None]:
    """Something that moves, on a terminal only: a version may have to load.

    Ctrl-C ends the command, not what the server has begun.
    """
    from rich.console import Console

    try:
        with Console(stderr=True).status(doing):
            yield
    except KeyboardInterrupt:
        typer.echo(_LEFT.format(name), err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _print_swap(swap: "Swap") -> None:
    took = f"in {swap.duration_ms:,.0f} ms"
    before = f"{swap.previous} -> " if swap.previous else ""
    typer.echo(f"{before}{swap.active} {took}")
