"""Which executor computes a model, by table."""

from collections.abc import Callable

from headrace.executors.config import ExecutorConfig
from headrace.executors.executor import Executor, Progress
from headrace.executors.openvino.executor import OpenVinoExecutor
from headrace.modelfiles.model import ModelFiles

EXECUTORS: dict[str, Callable[[ModelFiles, ExecutorConfig, Progress], Executor]] = {
    "auto": OpenVinoExecutor,
    "openvino": OpenVinoExecutor,
}


def create_executor(files: ModelFiles, config: ExecutorConfig, progress: Progress) -> Executor:
    """Load the model's weights into an executor; blocks for seconds, telling how far it is."""
    return EXECUTORS[config.executor](files, config, progress)
