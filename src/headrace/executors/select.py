"""Which executor computes a model. Imports only that one: each brings a large library."""

import os
from dataclasses import dataclass
from typing import Literal

import structlog

from headrace.errors import ConfigurationError
from headrace.executors.config import MAX_THREADS, ExecutorConfig
from headrace.executors.executor import Executor, Progress
from headrace.executors.native.precision import misfit
from headrace.modelfiles.config import ModelConfig
from headrace.modelfiles.model import ModelFiles

log = structlog.get_logger("headrace.executors")

INSTALL_NATIVE = "pip install headrace-native, or pip install ./native in a checkout"
_LEVEL = "HEADRACE_ISA"
_ONLY_NATIVE = frozenset({"w8a8", "w4a16"})


@dataclass(frozen=True, slots=True)
class Choice:
    """An executor, and why it is not the native one."""

    name: Literal["native", "openvino"]
    reason: str | None = None


def create_executor(files: ModelFiles, config: ExecutorConfig, progress: Progress) -> Executor:
    """Load the model's weights into an executor; blocks for seconds, telling how far it is."""
    if config.num_threads is not None and not 1 <= config.num_threads <= MAX_THREADS:
        raise ConfigurationError(
            f"num_threads is {config.num_threads}, and must be from 1 to {MAX_THREADS}",
            param="num_threads",
        )
    choice = choose_executor(config, files.config)
    if choice.name == "native":
        from headrace.executors.native.executor import NativeExecutor  # noqa: PLC0415 - only if used

        return NativeExecutor(files, config, progress)
    if choice.reason is not None:
        log.info("executor.not_native", executor=choice.name, reason=choice.reason)
    if asked := os.environ.get(_LEVEL):
        log.warning(
            "executor.level_ignored",
            reason=f"{_LEVEL}={asked} has no effect: it chooses among the native kernels",
            executor=choice.name,
        )
    from headrace.executors.openvino.executor import OpenVinoExecutor  # noqa: PLC0415 - the same

    return OpenVinoExecutor(files, config, progress)


def choose_executor(config: ExecutorConfig, model: ModelConfig | None = None) -> Choice:
    """The native one where it is there and fits; ConfigurationError when it must and does not."""
    if config.executor == "openvino":
        return Choice("openvino")
    reason = _absence() or _misfit(config, model)
    if reason is None:
        return Choice("native")
    if config.executor == "native":
        raise ConfigurationError(reason, param="executor")
    if config.precision in _ONLY_NATIVE:
        raise ConfigurationError(
            f"precision {config.precision!r} needs the native executor, but {reason}",
            param="precision",
        )
    return Choice("openvino", reason)


def _misfit(config: ExecutorConfig, model: ModelConfig | None) -> str | None:
    reason = misfit(config, model)
    return reason and f"the native executor does not fit: {reason}"


def _absence() -> str | None:
    """Why there are no kernels; a level that HEADRACE_ISA asks for in vain raises."""
    try:
        from headrace.executors.native import kernels  # noqa: PLC0415 - may be absent
    except ImportError as error:
        if not (error.name or "").startswith("headrace_native"):
            raise
        if isinstance(error, ModuleNotFoundError) and error.name == "headrace_native":
            return f"the native kernels are not installed: {INSTALL_NATIVE}"
        return f"the native kernels cannot be loaded: {error}"
    kernels.instruction_set()
    return None
