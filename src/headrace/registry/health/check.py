"""Asks every worker of a version how it is, and says whether that is enough to serve."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from headrace.errors import HeadraceError
from headrace.generation import LanguageModel
from headrace.registry.health.probe import Probe, ask_golden, probe
from headrace.registry.spec import GoldenCase

TRIES = 3  # before a version that was just loaded is given up
ENOUGH_GOLDEN = 0.8  # share of the golden cases without which no version gets ready

log = structlog.get_logger("headrace.registry")


class UnhealthyError(HeadraceError):
    """A version was loaded and did not pass its health check."""

    code = "unhealthy"


async def probe_all(
    models: Sequence[LanguageModel],
    golden: Sequence[GoldenCase],
    *,
    timeout: float,  # noqa: ASYNC109 - its end is an answer, not an error
) -> Probe:
    """The worst of what they say; one after the other, since they share the machine."""
    probes = [await probe(model, golden, timeout=timeout) for model in models]
    return min(probes, key=lambda p: (p.is_busy, p.is_alive, p.golden_passed, -p.seconds))


async def probe_golden(
    model: LanguageModel,
    golden: Sequence[GoldenCase],
    *,
    is_alive: bool,
    timeout: float,  # noqa: ASYNC109 - its end is an answer, not an error
) -> Probe:
    """Ask a model elsewhere the golden cases alone: there each answer may cost money."""
    if not is_alive:
        reason = "none of its upstreams answers"
        return Probe(is_alive=False, seconds=0.0, golden_total=len(golden), reason=reason)
    return await ask_golden(model, golden, timeout=timeout, seconds=0.0)


async def prove(
    model_id: str, check: Callable[[], Awaitable[Probe | None]], *, delay: float
) -> None:
    """UnhealthyError unless a check finds enough; a few tries, since machines may be slow."""
    for is_last in (*[False] * (TRIES - 1), True):
        found = await check()
        if found is None:
            raise UnhealthyError(f"{model_id} was taken down while it was checked")
        if _is_enough(found):
            return
        if is_last:
            raise UnhealthyError(f"{model_id} failed its health check: {found.reason}")
        log.info("model.unhealthy", model=model_id, reason=found.reason)
        await asyncio.sleep(delay)
        delay *= 2


def _is_enough(found: Probe) -> bool:
    return found.is_alive and found.golden_passed >= ENOUGH_GOLDEN * found.golden_total
