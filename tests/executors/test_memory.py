from pathlib import Path

import pytest

from headrace.errors import ConflictError, InsufficientMemoryError, from_code
from headrace.executors.memory import available_memory, readable, require_memory

GIB = 1 << 30


def test_what_is_free_is_enough_to_the_last_byte() -> None:
    require_memory(GIB, available=GIB)
    with pytest.raises(InsufficientMemoryError):
        require_memory(GIB + 1, available=GIB)


def test_a_refusal_names_both_numbers_and_what_to_do() -> None:
    with pytest.raises(ConflictError) as caught:
        require_memory(int(1.2 * GIB), available=int(0.8 * GIB), model_id="chat@2")
    assert caught.value.message == (
        "chat@2 needs about 1.2 GiB of memory and 819.2 MiB is available; free memory, unload a"
        " version, or swap with mode queue"
    )


def test_less_than_nothing_is_told_as_nothing() -> None:
    with pytest.raises(InsufficientMemoryError, match="0 bytes is available"):
        require_memory(GIB, available=-GIB)


def test_a_refusal_is_the_same_behind_a_process_boundary() -> None:
    error = InsufficientMemoryError("chat@2 needs more")
    again = from_code(error.code, error.message)
    assert type(again) is InsufficientMemoryError
    assert again.status == 409


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (3 << 19, "1.5 MiB"), (5 * GIB, "5.0 GiB")],
)
def test_bytes_are_readable(num_bytes: int, text: str) -> None:
    assert readable(num_bytes) == text


def test_a_kernel_that_does_not_tell_is_not_taken_for_a_full_machine(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None


def test_available_memory_is_within_the_cgroups_limit(tmp_path: Path) -> None:
    for name, text in {
        "proc/meminfo": f"MemAvailable: {4 * GIB // 1024} kB\n",
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": f"{3 * GIB}\n",
        "sys/fs/cgroup/box/memory.current": f"{GIB}\n",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert available_memory(tmp_path) == 2 * GIB
