"""The flags of `[models.engine]`, in one place for every command that loads a model."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Annotated, Any

import typer


def engine_flags(
    *,
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
) -> dict[str, Any]:
    """What was said of the engine, and no more: the rest is the server's to choose."""
    flags = {
        "executor": executor,
        "precision": precision,
        "kv_cache_precision": kv_cache_precision,
        "kv_cache_memory": kv_cache_memory,
        "num_threads": num_threads,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "prefix_caching": prefix_caching,
    }
    return {name: value for name, value in flags.items() if value is not None}


_FLAGS = signature(engine_flags).parameters


def with_engine_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Have typer give `command` the engine's flags, and `command` get them as its `engine`."""

    @wraps(command)
    def run(**values: Any) -> None:  # noqa: ANN401 - whatever the command takes
        said = {name: values.pop(name) for name in _FLAGS}
        command(**values, engine=engine_flags(**said))

    own = signature(command)
    kept = [each for name, each in own.parameters.items() if name != "engine"]
    both = [*kept, *_FLAGS.values()]
    run.__signature__ = own.replace(parameters=both)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in both}
    return run
