"""What may be loaded: what a client may name, and models for which there is memory."""

import re
from collections.abc import Container, Sequence
from pathlib import Path

from yarl import URL

from headrace.endpoints import UpstreamConfig
from headrace.errors import InvalidRequestError, ModelFileError
from headrace.executors.memory import available_memory, require_memory
from headrace.modelfiles.sources import ALIASES, is_remote
from headrace.registry.spec import ModelSpec
from headrace.worker.sizing import sizing
from headrace.worker.spec import WorkerSpec

__all__ = [
    "available_memory",
    "memory_needed",
    "require_allowed",
    "require_allowed_upstream",
    "require_memory",
]

MAX_SOURCE = 1024  # characters that a client may send
# Nothing that one server unpacks and another takes as it stands: no escapes, no dot segments.
_PLAIN_URL = re.compile(
    r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?(/(?!\.{1,2}(?:/|$))[\w.~-]+)*/?",
    re.ASCII,
)


def memory_needed(spec: ModelSpec, state_dir: Path) -> int | None:
    """Bytes that all workers of a version will hold; None while the model is not downloaded.

    Blocks for about a second. Packed weights, of which all workers map one file, count once.
    ModelFileError and ConfigurationError are those that the load would end with.
    """
    worker = WorkerSpec(
        model_id=spec.model_id, source=spec.source, state_dir=state_dir, executor=spec.executor
    )
    sizes = sizing(worker)
    return None if sizes is None else sizes.of_workers(spec.replicas)


def require_allowed(source: str, *, roots: Sequence[Path], declared: Container[str]) -> None:
    """InvalidRequestError for a source that a client may not name.

    Aliases, packages and repositories always pass, what the configuration declares passes as it
    stands, and a local path passes when it leads, links followed, below one of the roots. Others
    are refused in the same words whether or not they exist.
    """
    if source in declared:
        return
    if not source or len(source) > MAX_SOURCE or not source.isprintable():
        raise _refusal(f"a source has 1 to {MAX_SOURCE} printable characters")
    if source in ALIASES or _is_wellformed_remote(source):
        return
    if not any(_is_below(source, root) for root in roots):
        known = ", ".join(ALIASES)
        raise _refusal(
            f"{source}: clients may load an alias ({known}), pypi:PACKAGE, hf:ORG/NAME[:FILE], a"
            " source that the configuration declares, or a path below server.model_roots"
        )


def require_allowed_upstream(
    upstream: UpstreamConfig,
    *,
    roots: Sequence[str],
    declared: Container[tuple[URL, str | None]],
    field: str,
) -> None:
    """InvalidRequestError, of the `field`, for an upstream to which a client may not lead us.

    What the configuration declares passes with the variable of its key, or the want of one, as it
    is declared; a URL below one of the roots passes without a key. Others are refused in the same
    words, so that nobody learns which variables there are.
    """
    if (upstream.base, upstream.api_key_env) in declared:
        return
    if upstream.api_key_env is None and any(_is_url_below(upstream, root) for root in roots):
        return
    raise InvalidRequestError(
        f"{upstream.url}: clients may name an upstream that the configuration declares, with the"
        " api_key_env that it has there, or without one a URL below server.upstream_roots",
        param=field,
    )


def _is_url_below(upstream: UpstreamConfig, root: str) -> bool:
    if _PLAIN_URL.fullmatch(upstream.url) is None:
        return False
    base, top = upstream.base, URL(root.rstrip("/"))
    is_same_server = (base.scheme, base.host, base.port) == (top.scheme, top.host, top.port)
    return is_same_server and base.parts[: len(top.parts)] == top.parts


def _is_wellformed_remote(source: str) -> bool:
    try:
        return is_remote(source)
    except ModelFileError as error:
        raise _refusal(error.message) from None


def _is_below(source: str, root: Path) -> bool:
    if source.startswith("~"):  # a fetch would take it for somebody's home
        return False
    try:
        return Path(source).resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # links that go in circles, names that are too long
        return False


def _refusal(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="source")
