"""Headrace serves models: one server for language models and tensor models.

`LLM` and `SamplingParams` are loaded on first use, so that importing a part of Headrace stays fast.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from headrace.generation import SamplingParams
    from headrace.offline import LLM


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute is whatever its name says
    if name == "LLM":
        from headrace.offline import LLM  # noqa: PLC0415 - lazy, see above

        return LLM
    if name == "SamplingParams":
        from headrace.generation import SamplingParams  # noqa: PLC0415 - lazy, see above

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
