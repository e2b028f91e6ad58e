"""Where a user lies between 0 and 1 in a rollout: who is under its share gets the candidate.

So whoever has the candidate at 5 % still has it at 10 %, and no user need be remembered.
"""

from hashlib import blake2b


def place_of(rollout_id: str, user: str) -> float:
    """In [0, 1); another rollout mixes users anew, so nobody is always among the first."""
    key = rollout_id.encode()[:64]  # as long as a key of blake2b may be
    # A hash of its own, so that it says nothing of the user's cluster in the statistics.
    digest = blake2b(user.encode("utf-8", "replace"), digest_size=8, key=key, person=b"rollouts")
    return (int.from_bytes(digest.digest()) >> 11) / (1 << 53)
