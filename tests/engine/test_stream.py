import asyncio

import pytest

from headrace.engine.delivery import Delivery
from headrace.engine.stream import MAX_UNREAD_CHUNKS, ChunkStream, ChunkStreams, fold_chunks
from headrace.errors import HeadraceError, WorkerDiedError
from headrace.generation import Chunk, TokenLogprob


def chunk(text: str, index: int = 0, *, last: bool = False) -> Chunk:
    return Chunk(index, text, [ord(c) for c in text], finish_reason="stop" if last else None)


async def read(stream: ChunkStream) -> list[Chunk]:
    return [chunk async for chunk in stream]


async def test_a_waiting_reader_gets_each_chunk_as_it_is() -> None:
    streams = ChunkStreams()
    stream = streams.open("a")
    sent = chunk("x")
    reading = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    streams.dispatch([Delivery("a", sent), Delivery("unknown", chunk("y"))])
    assert await reading is sent


async def test_a_stream_ends_after_the_last_chunk_of_each_sequence() -> None:
    streams = ChunkStreams()
    stream = streams.open("a", num_sequences=2)
    reading = asyncio.create_task(read(stream))
    streams.dispatch([Delivery("a", chunk("x", 1, last=True))])
    await asyncio.sleep(0)
    assert not reading.done()
    streams.dispatch([Delivery("a", chunk("y", 0, last=True))])
    assert [(c.index, c.text) for c in await reading] == [(1, "x"), (0, "y")]
    assert len(streams) == 0


async def test_what_a_slow_reader_has_not_read_is_folded_and_nothing_is_lost() -> None:
    streams = ChunkStreams()
    stream = streams.open("a", num_sequences=2)
    for number in range(1000):
        streams.dispatch([Delivery("a", chunk(chr(97 + number % 26), number % 2))])
        assert len(stream._unread) <= 2 * MAX_UNREAD_CHUNKS
    streams.dispatch([Delivery("a", chunk("!", index, last=True)) for index in (0, 1)])
    first, second = await read(stream)
    expected = [chr(97 + number % 26) for number in range(1000)]
    assert first.text == "".join(expected[::2]) + "!"
    assert second.text == "".join(expected[1::2]) + "!"
    assert bytes(first.token_ids).decode() == first.text


async def test_an_error_comes_after_what_was_sent_before_it() -> None:
    streams = ChunkStreams()
    stream = streams.open("a")
    streams.dispatch([Delivery("a", chunk("x")), Delivery("a", error=HeadraceError("broken"))])
    assert (await anext(stream)).text == "x"
    with pytest.raises(HeadraceError, match="broken"):
        await anext(stream)


async def test_a_finished_stream_does_not_fail_afterwards() -> None:
    streams = ChunkStreams()
    stream = streams.open("a")
    streams.dispatch([Delivery("a", chunk("x", last=True))])
    streams.fail_all(WorkerDiedError("gone"))
    assert [c.text for c in await read(stream)] == ["x"]


async def test_every_open_stream_ends_when_the_worker_dies() -> None:
    streams = ChunkStreams()
    readings = [asyncio.create_task(read(streams.open(name))) for name in "ab"]
    await asyncio.sleep(0)
    streams.fail_all(WorkerDiedError("gone"))
    for reading in readings:
        with pytest.raises(WorkerDiedError):
            await reading


async def test_a_reader_that_is_cancelled_can_be_followed_by_another() -> None:
    streams = ChunkStreams()
    stream = streams.open("a")
    reading = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    streams.dispatch([Delivery("a", chunk("x"))])
    assert (await anext(stream)).text == "x"


async def test_a_request_has_one_stream() -> None:
    streams = ChunkStreams()
    stream = streams.open("a")
    with pytest.raises(ValueError, match="already open"):
        streams.open("a")
    stream.close()
    streams.open("a")


def test_folding_keeps_log_probabilities_in_order() -> None:
    logprobs = [TokenLogprob(n, b"", -1.0, []) for n in range(3)]
    parts = [Chunk(0, "", [n], [logprobs[n]]) for n in range(3)]
    (whole,) = fold_chunks(parts)
    assert whole.logprobs == logprobs


async def test_a_forwarded_chunk_is_taken_in_the_call_that_brings_it() -> None:
    streams = ChunkStreams()
    stream = streams.open("a")
    taken: list[str] = []

    def take(chunk: Chunk) -> bool:
        taken.append(chunk.text)
        return True

    streams.dispatch([Delivery("a", chunk("x")), Delivery("a", chunk("y"))])
    forwarding = asyncio.create_task(stream.forward(take))
    await asyncio.sleep(0)
    assert taken == ["xy"], "what waited comes first"
    streams.dispatch([Delivery("a", chunk("z"))])
    assert taken == ["xy", "z"]
    streams.dispatch([Delivery("a", chunk("!", last=True))])
    assert await forwarding
    assert taken == ["xy", "z", "!"]
    assert len(streams) == 0


async def test_what_comes_in_a_pause_waits_folded_for_the_next_call() -> None:
    streams = ChunkStreams()
    stream = streams.open("a")
    taken: list[str] = []

    def take(chunk: Chunk) -> bool:
        taken.append(chunk.text)
        return len(taken) != 1

    forwarding = asyncio.create_task(stream.forward(take))
    await asyncio.sleep(0)
    streams.dispatch([Delivery("a", chunk(text)) for text in "abc"])
    assert not await forwarding
    assert taken == ["a"]
    streams.dispatch([Delivery("a", chunk("d", last=True))])
    assert await stream.forward(take)
    assert taken == ["a", "bcd"]


async def test_a_fault_in_taking_is_the_readers_and_not_the_bringers() -> None:
    streams = ChunkStreams()
    stream = streams.open("a")

    def take(_chunk: Chunk) -> bool:
        raise ZeroDivisionError

    forwarding = asyncio.create_task(stream.forward(take))
    await asyncio.sleep(0)
    streams.dispatch([Delivery("a", chunk("x")), Delivery("a", chunk("y"))])
    with pytest.raises(ZeroDivisionError):
        await forwarding


async def test_forwarding_ends_with_the_error_that_ends_the_stream() -> None:
    streams = ChunkStreams()
    stream = streams.open("a")
    taken: list[Chunk] = []
    forwarding = asyncio.create_task(stream.forward(lambda chunk: not taken.append(chunk)))
    await asyncio.sleep(0)
    streams.dispatch([Delivery("a", chunk("x")), Delivery("a", error=HeadraceError("broken"))])
    with pytest.raises(HeadraceError, match="broken"):
        await forwarding
    assert [c.text for c in taken] == ["x"]
