"""`headrace rollout`: a candidate that takes over by stages, and what a person may do about it."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite, nan
from typing import TYPE_CHECKING, Annotated

import typer
from typer.models import OptionInfo

from headrace.cli.session import DEFAULT_URL, AsJson, ExitCode, Url, session

if TYPE_CHECKING:  # help is immediate
    from headrace.client.rollouts import Rollout

_HELP = """\
Give a new version of a model its users by stages, while guards compare it with the old one.

Exit codes: 0 done, 1 refused, or, where it is watched, sent back or aborted, 2 wrong command line,
4 no server answers, 130 interrupted."""

_LEFT = "the rollout goes on; `headrace rollout abort {0}` ends it"

app = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode=None)


def _number(words: str) -> OptionInfo:
    option: OptionInfo = typer.Option(callback=_finite, help=words)
    return option


def _finite(value: float | None) -> float | None:
    """What is not finite JSON cannot say, so that the server would miss a number."""
    if value is None or isfinite(value):
        return value
    raise typer.BadParameter(f"expected a number, got {value}")


RolloutId = Annotated[str, typer.Argument(metavar="ID", help="As `start` and `list` show it.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show it live until it ends.")]


@app.command()
def start(
    candidate: Annotated[str, typer.Argument(metavar="MODEL_ID", help="Such as chat@2.")],
    *,
    url: Url = DEFAULT_URL,
    stages: Annotated[
        str | None, typer.Option(metavar="P,P,..", help="Percent of users [5,10,25,50,100].")
    ] = None,
    stage_seconds: Annotated[
        float | None, _number("Each is held for so long at least [300].")
    ] = None,
    max_stage_seconds: Annotated[
        float | None, _number("After so long it says what it waits for [10 times that].")
    ] = None,
    max_error_rate: Annotated[
        float | None, _number("Share of the candidate's requests that may fail.")
    ] = None,
    max_error_increase: Annotated[
        float | None, _number("How far it may be over the stable version's.")
    ] = None,
    max_latency_ratio: Annotated[
        float | None, _number("Of mean latencies, over the stable version's.")
    ] = None,
    max_ttft_ratio: Annotated[
        float | None, _number("The same of times to the first token.")
    ] = None,
    shadow_percent: Annotated[
        float | None, _number("Of requests, shown to the candidate too [0].")
    ] = None,
    watch: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Begin a rollout; at least one of the --max-... guards must be given."""
    guards = {
        "max_error_rate": max_error_rate,
        "max_error_increase": max_error_increase,
        "max_latency_ratio": max_latency_ratio,
        "max_ttft_ratio": max_ttft_ratio,
    }
    with session(url, as_json=as_json) as client:
        rollout = client.rollouts.start(
            candidate.partition("@")[0],
            candidate,
            guards={name: limit for name, limit in guards.items() if limit is not None},
            stages=None if stages is None else _percents(stages),
            stage_seconds=stage_seconds,
            max_stage_seconds=max_stage_seconds,
            shadow_percent=shadow_percent,
        )
    if not as_json:
        typer.echo(f"rollout {rollout.rollout_id}: {rollout.stable} -> {rollout.candidate}")
    if watch:
        status(rollout.rollout_id, url=url, watch=True, as_json=as_json)


@app.command()
def status(
    rollout_id: RolloutId,
    *,
    url: Url = DEFAULT_URL,
    watch: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Show its stage, its guards with their numbers, and what was decided."""
    from headrace.cli.rollout_shown import print_rollout, watch_rollout

    with session(url, as_json=as_json) as client:
        if not watch:
            rollout = client.rollouts.get(rollout_id)
        else:
            with _leaving(rollout_id):
                rollout = watch_rollout(client, rollout_id, is_quiet=as_json)
    if not (watch or as_json):
        print_rollout(rollout)
    if watch and rollout.state != "promoted":
        raise typer.Exit(ExitCode.REFUSED)


@app.command("list")
def list_rollouts(*, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show those that run and the last that ended; the newest first."""
    with session(url, as_json=as_json) as client:
        rollouts = client.rollouts.list()
    if not as_json:
        from headrace.cli.rollout_shown import print_rollouts

        print_rollouts(rollouts)


@app.command()
def pause(rollout_id: RolloutId, *, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Stay at this stage; its guards may still send the candidate back."""
    with session(url, as_json=as_json) as client:
        _say(client.rollouts.pause(rollout_id), as_json=as_json)


@app.command()
def resume(rollout_id: RolloutId, *, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Go on where it was paused."""
    with session(url, as_json=as_json) as client:
        _say(client.rollouts.resume(rollout_id), as_json=as_json)


@app.command()
def promote(rollout_id: RolloutId, *, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Make the candidate the active version now, whatever its stage."""
    with session(url, as_json=as_json) as client:
        _say(client.rollouts.promote(rollout_id), as_json=as_json)


@app.command()
def abort(rollout_id: RolloutId, *, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """End it; every user gets the stable version again."""
    with session(url, as_json=as_json) as client:
        _say(client.rollouts.abort(rollout_id), as_json=as_json)


def _percents(text: str) -> list[float]:
    try:
        percents = [float(part) for part in text.split(",")]
    except ValueError:
        percents = [nan]
    if not all(isfinite(percent) for percent in percents):
        raise typer.BadParameter(f"--stages {text}: expected numbers, as in 5,25,100")
    return percents


def _say(rollout: "Rollout", *, as_json: bool) -> None:
    if not as_json:
        typer.echo(f"{rollout.rollout_id} {rollout.state}")


@contextmanager
def _leaving(rollout_id: str) -> Iterator[None]:
    """Ctrl-C ends the command, not the rollout."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(_LEFT.format(rollout_id), err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
