"""Waits for a version to load, as the server's events tell of it."""

import time
from contextlib import suppress

import typer
from rich.console import Console

from headrace.cli.progress import LoadProgress
from headrace.cli.session import ExitCode
from headrace.client import Client, ConnectionLostError, Model
from headrace.errors import HeadraceError, UnavailableError
from headrace.registry.lifecycle import SERVING

_PAUSE = 0.5  # seconds before a stream that has ended is opened again
_LEFT = "{0} goes on loading; `headrace models list` shows it, `headrace models unload {0}` ends it"
_ENDED = {"failed", "unloading", *SERVING}


def wait_until_loaded(client: Client, model_id: str) -> None:
    """Show on stderr how far it is; a load that fails is a HeadraceError with its reason.

    Ctrl-C ends the command, not the load.
    """
    try:
        with LoadProgress(Console(stderr=True)) as progress:
            model = _wait(client, model_id, progress)
    except KeyboardInterrupt:
        typer.echo(_LEFT.format(model_id), err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    match model.state:
        case "failed":
            raise HeadraceError(f"{model_id} failed to load: {model.reason or 'no reason given'}")
        case "unloading":
            raise HeadraceError(f"{model_id} was unloaded before it was ready")


def _wait(client: Client, model_id: str, progress: LoadProgress) -> Model:
    """Its first status that is no loading, over as many streams as it takes.

    Where too many watch already it is asked for now and then.
    """
    while True:
        with suppress(ConnectionLostError, UnavailableError), client.models.watch() as models:
            client.models.get(model_id)  # unloaded while no stream was open, it is not found
            for model in models:
                if model.model_id != model_id:
                    continue
                progress.update([model])
                if model.state in _ENDED:
                    return model
        time.sleep(_PAUSE)
        if (model := client.models.get(model_id)).state in _ENDED:
            return model
        progress.update([model])
