import pytest

from headrace.registry.health.check import TRIES, UnhealthyError, prove
from headrace.registry.health.probe import Probe

WELL = Probe(is_alive=True, seconds=0.1)
HUNG = Probe(is_alive=False, seconds=1.0, reason="did not answer within 1 s")


class Checks:
    """Finds one after the other."""

    def __init__(self, *found: Probe | None) -> None:
        self._left = list(found)

    async def __call__(self) -> Probe | None:
        return self._left.pop(0)

    @property
    def num_left(self) -> int:
        return len(self._left)


async def test_a_machine_that_is_slow_for_a_moment_gets_another_try() -> None:
    checks = Checks(*[HUNG] * (TRIES - 1), WELL)
    await prove("m@1", checks, delay=0.0)
    assert checks.num_left == 0


async def test_what_the_last_try_found_is_the_reason() -> None:
    with pytest.raises(UnhealthyError, match="m@1 failed its health check: did not answer within"):
        await prove("m@1", Checks(*[HUNG] * TRIES), delay=0.0)


@pytest.mark.parametrize(("passed", "is_enough"), [(8, True), (7, False)])
async def test_most_golden_cases_must_pass(passed: int, *, is_enough: bool) -> None:
    found = Probe(is_alive=True, seconds=0.1, golden_passed=passed, golden_total=10)
    checks = Checks(*[found] * TRIES)
    if is_enough:
        await prove("m@1", checks, delay=0.0)
    else:
        with pytest.raises(UnhealthyError):
            await prove("m@1", checks, delay=0.0)


async def test_a_version_that_is_taken_down_meanwhile_is_not_tried_again() -> None:
    checks = Checks(None, WELL)
    with pytest.raises(UnhealthyError, match="taken down"):
        await prove("m@1", checks, delay=0.0)
    assert checks.num_left == 1
