"""Remembers which endpoint has seen which beginnings of prompts. Knows no load.

A beginning is whole chunks of a fixed size. The digest of a chunk covers, through its parent, all
before it, so that one look-up tells a whole prefix. Digests are Python's hashes: 64 bits of SipHash
under a key of this process. It costs a third of a cryptographic one, and two prefixes that had the
same would only be taken for known where they are not.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.strategy.strategy import RequestKey

CHUNK_BYTES = 1024  # of UTF-8, or of token ids: some 256 tokens
TOKEN_BYTES = array("i").itemsize
MAX_CHUNKS = 64  # of one prompt: what hashing may cost, and how much of the memory one may take
MAX_HOLDERS = 8  # of one chunk: the latest
CAPACITY = 1 << 16  # chunks; some tens of megabytes


class Beginning(NamedTuple):
    """Digests of the whole chunks that a prompt begins with, and what part of it a chunk is."""

    digests: list[int]
    share: float


class Prefixes:
    """Digests of chunks with who saw them, the longest unused forgotten first."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        # The holders of a chunk in the order in which they came.
        self._holders: OrderedDict[int, dict[Endpoint, None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def matched(self, digests: Sequence[int]) -> dict[Endpoint, int]:
        """How many chunks from the start endpoints have seen; those with most of them first."""
        depths: dict[Endpoint, int] = {}
        known = self._known(digests)
        for depth in range(len(known), 0, -1):
            for endpoint in known[depth - 1]:
                depths.setdefault(endpoint, depth)
            if len(depths) >= MAX_HOLDERS:
                break
        return depths

    def remember(self, digests: Sequence[int], endpoint: Endpoint) -> None:
        """Note that the endpoint sees these chunks now."""
        for digest in reversed(digests):  # tails age first, so prefixes outlive them
            if (holders := self._holders.get(digest)) is None:
                self._holders[digest] = {endpoint: None}
                continue
            self._holders.move_to_end(digest)
            if endpoint not in holders:
                holders[endpoint] = None
                if len(holders) > MAX_HOLDERS:
                    del holders[next(iter(holders))]
        while len(self._holders) > self._capacity:
            self._holders.popitem(last=False)

    def _known(self, digests: Sequence[int]) -> list[dict[Endpoint, None]]:
        known = []
        for digest in digests:
            if (holders := self._holders.get(digest)) is None:
                break
            known.append(holders)
        return known


def beginning_of(key: RequestKey) -> Beginning:
    """What a prompt begins with, up to a limit; text and token ids never meet."""
    if isinstance(key.prompt, str):
        kind, limit = "text", MAX_CHUNKS * CHUNK_BYTES
        content = key.prompt[:limit].encode("utf-8", "surrogatepass")
    else:
        kind, limit = "tokens", MAX_CHUNKS * CHUNK_BYTES // TOKEN_BYTES
        content = _token_bytes(key.prompt[:limit])
    root = hash((kind, key.salt))
    all_bytes = len(content) * max(1.0, len(key.prompt) / limit)
    return Beginning(_chain(root, content), CHUNK_BYTES / max(CHUNK_BYTES, all_bytes))


def _chain(digest: int, content: bytes) -> list[int]:
    digests = []
    for start in range(0, min(len(content) // CHUNK_BYTES, MAX_CHUNKS) * CHUNK_BYTES, CHUNK_BYTES):
        digest = hash((digest, content[start : start + CHUNK_BYTES]))
        digests.append(digest)
    return digests


def _token_bytes(token_ids: Sequence[int]) -> bytes:
    try:
        return array("i", token_ids).tobytes()
    except OverflowError:  # no model has such a token; its worker will say so
        return repr(token_ids).encode()
