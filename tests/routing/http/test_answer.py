import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.routing.http.answer import MAX_UNREAD_BYTES, Answer
from headrace.routing.http.errors import MalformedError, UnreachableError


class Line:
    """What an answer asks of its connection."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def pause(self) -> None:
        self.asked.append("pause")

    def resume(self) -> None:
        self.asked.append("resume")

    def abort(self) -> None:
        self.asked.append("abort")


async def turn_over() -> None:
    await asyncio.sleep(0)


async def begun() -> tuple[Answer, Line]:
    line = Line()
    answer = Answer(line)
    answer.begin(200, {"x": "1"})
    await answer.head()
    return answer, line


def finish(answer: Answer, piece: bytes = b"") -> None:
    answer.is_over = True
    if piece:
        answer.put(piece)
    answer.end()


async def test_what_nobody_reads_pauses_the_connection_until_it_is_read() -> None:
    answer, line = await begun()
    answer.put(b"x" * MAX_UNREAD_BYTES)
    assert line.asked == []
    answer.put(b"y")
    answer.put(b"z")  # was under way
    assert line.asked == ["pause"]
    assert await answer.read() == b"x" * MAX_UNREAD_BYTES + b"yz"
    assert line.asked == ["pause", "resume"]


async def test_an_answer_that_is_over_leaves_the_connection_alone() -> None:
    answer, line = await begun()
    answer.put(b"x" * (MAX_UNREAD_BYTES + 1))
    finish(answer, b"y" * MAX_UNREAD_BYTES)
    answer.abort()
    assert line.asked == ["pause"]
    assert len(await answer.read()) == 2 * MAX_UNREAD_BYTES + 1
    assert await answer.read() == b""
    assert line.asked == ["pause"]


async def test_what_came_is_read_before_the_error() -> None:
    answer, _ = await begun()
    answer.put(b"x")
    answer.fail(MalformedError("first"))
    answer.fail(MalformedError("second"))
    assert await answer.read() == b"x"
    for _ in range(2):
        with pytest.raises(MalformedError, match="first"):
            await answer.read()


async def test_what_is_aborted_is_not_read() -> None:
    answer, line = await begun()
    answer.put(b"x")
    answer.abort()
    answer.abort()
    assert line.asked == ["abort"]
    with pytest.raises(UnreachableError):
        await answer.read()


async def test_a_piece_is_taken_by_the_call_that_brings_it() -> None:
    answer, _ = await begun()
    got: list[tuple[bytes, bool]] = []

    def take(piece: bytes) -> bool:
        got.append((piece, answer.is_over))
        return True

    task = asyncio.create_task(answer.forward(take))
    await asyncio.sleep(0)
    answer.put(b"a")
    assert got == [(b"a", False)]
    finish(answer, b"b")
    assert got == [(b"a", False), (b"b", True)]
    assert await task


async def test_a_pause_lets_pieces_wait_joined() -> None:
    answer, _ = await begun()
    got: list[bytes] = []

    def take(piece: bytes) -> bool:
        got.append(piece)
        return False

    task = asyncio.create_task(answer.forward(take))
    await asyncio.sleep(0)
    for piece in (b"a", b"b", b"c"):
        answer.put(piece)
    assert not await task
    assert not await answer.forward(take)
    assert got == [b"a", b"bc"]
    finish(answer)
    assert await answer.forward(take)
    assert got == [b"a", b"bc"]


async def test_a_reader_that_fails_hears_of_it_and_gets_no_more() -> None:
    answer, _ = await begun()
    got: list[bytes] = []

    def fail(piece: bytes) -> bool:
        got.append(piece)
        raise ZeroDivisionError

    task = asyncio.create_task(answer.forward(fail))
    await asyncio.sleep(0)
    answer.put(b"a")
    answer.put(b"b")
    with pytest.raises(ZeroDivisionError):
        await task
    assert got == [b"a"]


async def test_a_forwarding_reader_hears_of_a_failure_after_what_came() -> None:
    answer, _ = await begun()
    got: list[bytes] = []
    answer.put(b"a")
    answer.fail(MalformedError("no"))
    with pytest.raises(MalformedError):
        await answer.forward(lambda piece: bool(got.append(piece)) or True)
    assert got == [b"a"]


async def test_a_cancelled_reader_may_be_followed_by_another() -> None:
    answer, _ = await begun()
    for wait in (answer.read(), answer.forward(lambda _: True)):
        task = asyncio.create_task(wait)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    answer.put(b"x")
    assert await answer.read() == b"x"


@given(
    sizes=st.lists(st.integers(1, 40_000), max_size=30),
    rooms=st.lists(st.booleans(), max_size=30),
    turns=st.lists(st.booleans(), max_size=30),
    error=st.booleans(),
)
def test_every_piece_is_taken_once_and_in_order(
    sizes: list[int], rooms: list[bool], turns: list[bool], *, error: bool
) -> None:
    pieces = [bytes([i % 256]) * size for i, size in enumerate(sizes)]
    got: list[bytes] = []
    room, turn = iter(rooms), iter(turns)

    def take(piece: bytes) -> bool:
        got.append(piece)
        return next(room, True)

    async def send(answer: Answer, line: Line) -> None:
        for piece in pieces:
            while line.asked[-1:] == ["pause"]:  # noqa: ASYNC110  # a list has no event
                await asyncio.sleep(0)
            answer.put(piece)
            if next(turn, True):
                await asyncio.sleep(0)
        if error:
            answer.fail(MalformedError("no"))
        else:
            finish(answer)

    async def work() -> None:
        answer, line = await begun()
        sending = asyncio.create_task(send(answer, line))
        try:
            while not await answer.forward(take):
                await turn_over()
            assert not error
        except MalformedError:
            assert error
        await sending

    asyncio.run(work())
    assert b"".join(got) == b"".join(pieces)
