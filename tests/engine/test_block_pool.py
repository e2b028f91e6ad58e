import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.block_pool import BlockPool, chain_digest, root_digest


def test_a_freed_block_is_revived_by_its_content_until_its_space_is_needed() -> None:
    pool = BlockPool(2, 4)
    digest = chain_digest(root_digest(""), [1, 2, 3, 4])
    (block,) = pool.allocate(1)
    pool.make_shareable(block, digest)
    pool.release([block])
    assert pool.lookup([digest]) == [block]
    pool.share([block])
    pool.release([block])
    pool.allocate(2)
    assert pool.lookup([digest]) == []
    pool.check()


def test_blocks_that_nobody_can_revive_are_reused_first() -> None:
    pool = BlockPool(3, 4)
    blocks = pool.allocate(3)
    digest = chain_digest(root_digest(""), [1])
    pool.make_shareable(blocks[0], digest)
    pool.release(blocks)
    pool.allocate(2)
    assert pool.lookup([digest]) == [blocks[0]]


def test_a_prefix_outlives_its_continuation() -> None:
    pool = BlockPool(2, 1)
    blocks = pool.allocate(2)
    first = chain_digest(root_digest(""), [1])
    second = chain_digest(first, [2])
    for block, digest in zip(blocks, (first, second), strict=True):
        pool.make_shareable(block, digest)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.lookup([first, second]) == [blocks[0]]


def test_digests_depend_on_salt_parent_and_tokens() -> None:
    roots = [root_digest(salt) for salt in ("", "a", "b")]
    digests = {chain_digest(root, tokens) for root in roots for tokens in ([1, 2], [2, 1], [258])}
    digests |= {chain_digest(chain_digest(roots[0], [1]), [2])}
    assert len(digests) == 10
    assert all(len(digest) * 8 >= 128 for digest in digests)


@settings(max_examples=60)
@given(moves=st.lists(st.tuples(st.sampled_from("asrm"), st.integers(0, 10**6)), max_size=80))
def test_counts_free_list_and_digests_agree_after_every_move(
    moves: list[tuple[str, int]],
) -> None:
    pool, held = BlockPool(8, 2), list[list[int]]()
    digests = [chain_digest(root_digest(""), [number]) for number in range(5)]
    for move, choice in moves:
        if move == "a" and pool.num_free:
            held.append(pool.allocate(1 + choice % pool.num_free))
        elif move == "s":
            blocks = pool.lookup([digests[choice % 5]])
            pool.share(blocks)
            held.append(blocks)
        elif move == "r" and held:
            pool.release(held.pop(choice % len(held)))
        elif move == "m" and held and (blocks := held[choice % len(held)]):
            pool.make_shareable(blocks[0], digests[choice % 5])
        pool.check()
    for blocks in held:
        pool.release(blocks)
    assert pool.num_free == 8
    pool.check()


def test_taking_more_than_is_free_is_a_fault() -> None:
    with pytest.raises(AssertionError):
        BlockPool(2, 4).allocate(3)
