"""Whether a candidate fails so plainly that no test is needed, by the last requests of both.

One user may send what no version can answer, and an outage that both share is not the candidate's.
"""

from collections import deque

from headrace.routing.observation import Observation
from headrace.routing.stats.guard import HardLimit

MIN_USERS = 3  # whose requests failed


class LastRequests:
    """Of all stages: what fails after its stage is over counts here as well."""

    def __init__(self) -> None:
        self._candidate = HardLimit()
        self._stable = HardLimit()
        self._users: deque[str] = deque(maxlen=self._candidate.num_requests)

    def add(self, seen: Observation, *, candidate: bool) -> None:
        if seen.has_left:
            return
        if not candidate:
            self._stable.add(failed=seen.failed)
            return
        self._candidate.add(failed=seen.failed)
        self._users.append(seen.user)

    @property
    def is_broken(self) -> bool:
        """More than half of the candidate's, of several users, and twice the stable's share."""
        return (
            self._candidate.is_broken
            and len(self._failing_users) >= MIN_USERS
            and 2 * _share(self._stable.last) < _share(self._candidate.last)
        )

    @property
    def _failing_users(self) -> set[str]:
        of_each = zip(self._users, self._candidate.last, strict=True)
        return {user for user, failed in of_each if failed}


def _share(last: list[bool]) -> float:
    return sum(last) / len(last) if last else 0.0
