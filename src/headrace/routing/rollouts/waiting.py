"""What keeps a stage from being passed, in words. Decides nothing."""

from collections.abc import Iterator

from headrace.routing.rollouts.decision import Numbers
from headrace.routing.stats.comparison import BETTER_TAKES, MIN_CLUSTERS, Verdict

MIN_REQUESTS = 50
"""Of either version in a stage; no stage is passed on fewer, also one without guards."""

Floor = tuple[str, int, int]  # of what, how many there are, how many there must be


def waiting_for(numbers: dict[str, Numbers], num_candidate: int) -> list[str]:
    """Empty once nothing does."""
    unknown = {name: each for name, each in numbers.items() if each.verdict is not Verdict.FINE}
    floors = [floor for each in unknown.values() for floor in _floors(each)]
    floors.append(("requests of the candidate", num_candidate, MIN_REQUESTS))
    uncertain = [
        f"{name} is not certain yet"
        for name, each in unknown.items()
        if all(have >= needed for _, have, needed in _floors(each))
    ]
    return _lacking(floors) + uncertain


def _floors(each: Numbers) -> Iterator[Floor]:
    """Below which a guard never says fine; one that compares has a stable version's mean."""
    yield "users of the candidate", each.num_candidate_users, MIN_CLUSTERS
    if each.stable is not None:
        yield "requests of the candidate", each.num_candidate, MIN_REQUESTS * BETTER_TAKES
        yield "users of the stable version", each.num_stable_users, MIN_CLUSTERS
        yield "requests of the stable version", each.num_stable, MIN_REQUESTS


def _lacking(floors: list[Floor]) -> list[str]:
    """Of several floors of the same the one that is furthest."""
    furthest: dict[str, tuple[int, int]] = {}
    for what, have, needed in floors:
        before, of = furthest.get(what, (0, 0))
        if have < needed and needed - have > of - before:
            furthest[what] = (have, needed)
    return [f"{have} of {needed} {what}" for what, (have, needed) in furthest.items()]
