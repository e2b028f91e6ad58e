"""What is shown while models load: bars on a terminal, plain lines elsewhere."""

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

_LOADING = ("loading", "health_check")
_BEFORE_FIRST_PHASE = "starting"


class LoadProgress:
    """One bar for each model that is loading: its phase and the share of that done."""

    def __init__(self, console: Console) -> None:
        """Show on `console`."""
        self._console = console
        self._bars = Progress(
            TextColumn("[bold]{task.fields[model]}"),
            TextColumn("{task.description:<10}"),
            BarColumn(),
            TaskProgressColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._phases: dict[str, str] = {}
        self._is_closed = False

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def update(self, statuses: Sequence["Loading"]) -> None:
        if self._is_closed:
            return
        for status in statuses:
            if status.state in _LOADING:
                self._show(status.model_id, status.phase or _BEFORE_FIRST_PHASE, status.progress)
            elif status.model_id in self._tasks:
                self._bars.remove_task(self._tasks.pop(status.model_id))

    def close(self) -> None:
        """Take the bars away and show nothing more; harmless when done twice."""
        self._is_closed = True
        self._bars.stop()

    def _show(self, model_id: str, phase: str, progress: float) -> None:
        if model_id not in self._tasks:
            self._tasks[model_id] = self._bars.add_task(phase, total=1.0, model=model_id)
        self._bars.update(self._tasks[model_id], description=phase, completed=progress)
        is_news = phase not in (_BEFORE_FIRST_PHASE, self._phases.get(model_id))
        if is_news and not self._console.is_terminal:
            self._console.print(f"{model_id}: {phase}", highlight=False)
        self._phases[model_id] = phase


class Loading(Protocol):
    """What is shown of a version, as the registry and the client both have it."""

    @property
    def model_id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def progress(self) -> float: ...
