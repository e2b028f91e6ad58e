import io
from dataclasses import dataclass

from rich.console import Console

from headrace.cli.progress import LoadProgress


@dataclass
class Status:
    phase: str
    model_id: str = "chat@1"
    state: str = "loading"
    progress: float = 0.5


def test_each_phase_is_a_line_where_no_terminal_is() -> None:
    out = io.StringIO()
    with LoadProgress(Console(file=out)) as progress:
        for phase in ("starting", "fetching", "fetching", "warming", ""):
            progress.update([Status(phase)])
    assert out.getvalue() == "chat@1: fetching\nchat@1: warming\n"


def test_what_loads_once_the_server_is_announced_is_left_to_the_log() -> None:
    out = io.StringIO()
    with LoadProgress(Console(file=out)) as progress:
        progress.close()
        progress.update([Status("fetching", "chat@2")])
    assert out.getvalue() == ""
