"""Which variant a user gets: always the same one, in an experiment, without remembering users."""

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate


class Assignment:
    """Users by weight. Another experiment mixes them anew."""

    def __init__(self, experiment_id: str, weights: Sequence[float]) -> None:
        self._key = experiment_id.encode()[:64]  # as long as a key of blake2b may be
        self._edges = list(accumulate(weights))
        assert self._edges[-1] > 0, "somebody must get the users"

    def variant_of(self, user: str) -> int:
        """Its number; `user` is the request's own id where nobody is named."""
        # A hash of its own, so that it says nothing of the user's cluster in the statistics.
        digest = blake2b(user.encode(), digest_size=8, key=self._key, person=b"variants").digest()
        share = (int.from_bytes(digest) >> 11) / (1 << 53)  # in [0, 1), exactly
        return min(bisect_right(self._edges, share * self._edges[-1]), len(self._edges) - 1)
