"""KV blocks: hand out, share by prefix, take back, reuse the longest unused. Every move is O(1)."""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

Digest = bytes
_DIGEST_BYTES = 16


class BlockPool:
    """Counts references to blocks and remembers the content of computed ones.

    A free block keeps its content's digest, so that a later prompt may revive it until its space
    is needed.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0
        assert block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._ref_counts = [0] * num_blocks
        self._digests: list[Digest | None] = [None] * num_blocks
        self._shareable: dict[Digest, int] = {}
        self._free = OrderedDict.fromkeys(range(num_blocks))  # longest unused first

    @property
    def num_free(self) -> int:
        return len(self._free)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def lookup(self, digests: Iterable[Digest]) -> list[int]:
        """The longest run of computed blocks from the start of a chain."""
        blocks = []
        for digest in digests:
            if (block := self._shareable.get(digest)) is None:
                break
            blocks.append(block)
        return blocks

    def num_unused(self, blocks: Sequence[int]) -> int:
        """How many of the blocks are free, so that sharing them takes from `num_free`."""
        return sum(self._ref_counts[block] == 0 for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._free.pop(block, None)
            self._ref_counts[block] += 1

    def allocate(self, count: int) -> list[int]:
        assert count <= len(self._free)
        return [self._take_longest_unused() for _ in range(count)]

    def release(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):  # tails are reused first, so prefixes outlive them
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free[block] = None
                if self._digests[block] is None:
                    self._free.move_to_end(block, last=False)  # nobody can revive it

    def make_shareable(self, block: int, digest: Digest) -> None:
        """Remember a block whose every token is computed; the first of equal content is kept."""
        if digest not in self._shareable and self._digests[block] is None:
            self._shareable[digest] = block
            self._digests[block] = digest

    def check(self) -> None:
        """Prove that counts, free list and digests agree."""
        unused = {block for block, count in enumerate(self._ref_counts) if count == 0}
        assert min(self._ref_counts) >= 0
        assert unused == set(self._free)
        kept = {digest: block for block, digest in enumerate(self._digests) if digest is not None}
        assert kept == self._shareable

    def _take_longest_unused(self) -> int:
        block, _ = self._free.popitem(last=False)
        if (digest := self._digests[block]) is not None:
            del self._shareable[digest]
            self._digests[block] = None
        self._ref_counts[block] = 1
        return block


def root_digest(salt: str) -> Digest:
    """Where a chain starts; tenants with different salts never meet."""
    return blake2b(salt.encode(), digest_size=_DIGEST_BYTES).digest()


def chain_digest(parent: Digest, token_ids: Sequence[int]) -> Digest:
    """The identity of a full block: its tokens and, through its parent, all before them."""
    content = array("i", token_ids).tobytes()
    return blake2b(parent + content, digest_size=_DIGEST_BYTES).digest()
