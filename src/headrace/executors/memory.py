"""Whether there is memory for a model, told in sentences. Imports nothing that takes long."""

from headrace.errors import InsufficientMemoryError
from headrace.executors.cpu import available_memory, mapped_bytes

__all__ = ["available_memory", "mapped_bytes", "readable", "require_memory"]

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"))


def require_memory(needed: int, *, available: int, model_id: str = "the model") -> None:
    """InsufficientMemoryError when less than `needed` bytes is available."""
    if needed > available:
        raise InsufficientMemoryError(
            f"{model_id} needs about {readable(needed)} of memory and"
            f" {readable(max(0, available))} is available; free memory, unload a version, or swap"
            " with mode queue"
        )


def readable(num_bytes: int) -> str:
    """Bytes in the unit that people would use, `1.2 GiB`."""
    for size, unit in _UNITS:
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"
