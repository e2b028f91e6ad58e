import asyncio
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.delivery import Delivery
from headrace.errors import QueueFullError
from headrace.generation import (
    Chat,
    Chunk,
    EngineStats,
    GenerationRequest,
    Message,
    SamplingParams,
    Timing,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from headrace.worker import frames
from headrace.worker.channel import BYTES_A_TURN, LENGTH_BYTES, MAX_FRAME_BYTES, Channel
from headrace.worker.spec import WorkerSpec


class Ends:
    """Two connected channels that remember what they got."""

    def __init__(self, **options: Any) -> None:
        self.received: list[Any] = []
        self.arrived = asyncio.Event()
        self.broken: list[str] = []
        self.broke = asyncio.Event()
        self.hung_up = asyncio.Event()
        self.got: Callable[[], None] = lambda: None
        near, self.raw = socket.socketpair()
        self.near = Channel(
            near,
            frames.TO_WORKER,
            receive=self._got,
            broken=self._broke,
            hung_up=self.hung_up.set,
            **options,
        )
        self.far: Channel[Any] | None = None

    def listen(self, decoder: msgspec.msgpack.Decoder[Any] = frames.FROM_WORKER) -> Channel[Any]:
        self.far = Channel(self.raw, decoder, receive=self._got, broken=self._broke)
        return self.far

    async def wait_for(self, count: int) -> None:
        while len(self.received) < count:
            self.arrived.clear()
            await asyncio.wait_for(self.arrived.wait(), 10)

    def close(self) -> None:
        self.near.close()
        if self.far is None:
            self.raw.close()
        else:
            self.far.close()

    def _broke(self, reason: str) -> None:
        self.broken.append(reason)
        self.broke.set()

    def _got(self, frame: Any) -> None:
        self.received.append(frame)
        self.arrived.set()
        self.got()


@contextmanager
def ends(**options: Any) -> Iterator[Ends]:
    pair = Ends(**options)
    try:
        yield pair
    finally:
        pair.close()


def read_all(raw: socket.socket) -> bytes:
    raw.settimeout(10)
    return b"".join(iter(lambda: raw.recv(1 << 16), b""))


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def step(number: int) -> frames.Step:
    return frames.Step([Delivery("r", Chunk(0, str(number), [number]))], EngineStats())


async def test_frames_arrive_in_order_however_many() -> None:
    count = 10_000
    with ends() as pair:
        pair.listen()
        for number in range(count):
            pair.near.send(frames.encode(step(number)))
        await pair.wait_for(count)
        assert [frame.deliveries[0].chunk.token_ids for frame in pair.received] == [
            [number] for number in range(count)
        ]


async def test_nothing_is_lost_when_the_other_side_starts_to_read_late() -> None:
    count = 1000
    with ends() as pair:
        # Large, so that the system's own socket buffers cannot take them all.
        frame = frames.encode(frames.Abort(["x" * 10_000]))
        for _ in range(count):
            pair.near.send(frame)
        assert pair.near.outbox_bytes > 0
        await asyncio.sleep(0)
        pair.listen(frames.TO_WORKER)
        await pair.wait_for(count)
        assert pair.near.outbox_bytes == 0


async def test_both_directions_are_served_at_once() -> None:
    count = 1000
    with ends() as pair:
        far = pair.listen()
        for number in range(count):
            pair.near.send(frames.encode(step(number)))
            far.send(frames.encode(frames.Abort([str(number)])))
        await pair.wait_for(2 * count)
        assert {type(frame) for frame in pair.received} == {frames.Step, frames.Abort}


async def test_frames_of_several_threads_each_arrive_in_order() -> None:
    count, num_threads = 1000, 3
    with ends() as pair:
        far = pair.listen(frames.TO_WORKER)

        def send_all(thread: int) -> None:
            for number in range(count):
                pair.near.send(frames.encode(frames.Abort([str(thread), str(number)])))

        async def answer() -> None:
            for number in range(count):
                far.send(frames.encode(frames.Abort(["back", str(number)])))
                await asyncio.sleep(0)

        threads = [asyncio.to_thread(send_all, thread) for thread in range(num_threads)]
        await asyncio.gather(*threads, answer())
        await pair.wait_for((num_threads + 1) * count)
        for sender in (*map(str, range(num_threads)), "back"):
            numbers = [f.request_ids[1] for f in pair.received if f.request_ids[0] == sender]
            assert numbers == [str(number) for number in range(count)]


async def test_a_thread_that_fills_the_outbox_breaks_the_channel_on_its_loop() -> None:
    with ends(max_outbox_bytes=100_000) as pair:
        frame = frames.encode(frames.Abort(["x" * 1000]))

        def fill() -> None:
            while pair.near.outbox_bytes <= 100_000 and pair.near.is_open:
                pair.near.send(frame)

        await asyncio.to_thread(fill)
        await asyncio.wait_for(pair.broke.wait(), 10)
        assert len(pair.broken) == 1
        assert not pair.near.is_open
        await asyncio.to_thread(pair.near.send, frame)  # goes nowhere


async def test_a_peer_that_never_reads_breaks_the_channel_at_its_bound() -> None:
    with ends(max_outbox_bytes=100_000) as pair:
        frame = frames.encode(frames.Abort(["x" * 1000]))
        for _ in range(100_000):
            pair.near.send(frame)
        assert len(pair.broken) == 1
        assert "unread" in pair.broken[0]
        assert not pair.near.is_open


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91\xa5Bogus",
        msgspec.msgpack.encode(["Generate", {"request_id": 7}]),
        msgspec.msgpack.encode(["Abort", [b"\xff"]]),
        frames.encode(frames.Hello(1)),
        b"\x92\xa5Abort\x91\xa2\xff\xfe",
    ],
)
async def test_bytes_that_are_no_frame_break_the_channel_once(data: bytes) -> None:
    with ends() as pair:
        pair.raw.sendall(2 * framed(data))
        await asyncio.wait_for(pair.broke.wait(), 10)
        assert not pair.near.is_open
        assert len(pair.broken) == 1
        assert "malformed" in pair.broken[0]
        assert pair.received == []


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=6), st.data())
def test_frames_are_whole_however_the_bytes_are_cut(
    texts: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(framed(frames.encode(frames.Abort([text.hex()]))) for text in texts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=8)))

    async def run() -> None:
        with ends() as pair:
            for start, end in itertools.pairwise([0, *cuts, len(stream)]):
                pair.raw.sendall(stream[start:end])
                pair.near.receive_rest()
            assert [frame.request_ids[0] for frame in pair.received] == [t.hex() for t in texts]

    asyncio.run(run())


async def test_a_frame_of_many_turns_arrives_whole() -> None:
    with ends() as pair:
        far = pair.listen()
        frame = frames.Abort(["x" * (40 * BYTES_A_TURN)])
        far.send(frames.encode(frame))
        far.send(frames.encode(frames.Drain()))
        await pair.wait_for(2)
        assert pair.received == [frame, frames.Drain()]


async def test_a_length_past_the_bound_breaks_the_channel_before_its_bytes_come() -> None:
    with ends() as pair:
        pair.raw.sendall((MAX_FRAME_BYTES + 1).to_bytes(LENGTH_BYTES, "little"))
        await asyncio.wait_for(pair.broke.wait(), 10)
        assert pair.broken == [f"a malformed frame: it claims {MAX_FRAME_BYTES + 1} bytes"]


async def test_the_end_of_the_other_side_is_told_after_its_last_frame() -> None:
    with ends() as pair:
        pair.raw.sendall(framed(frames.encode(frames.Drain())))
        pair.raw.close()
        await asyncio.wait_for(pair.hung_up.wait(), 10)
        assert pair.received == [frames.Drain()]
        assert pair.broken == []
        pair.near.send(frames.encode(step(1)))  # goes nowhere
        assert pair.near.outbox_bytes == 0
        assert pair.near.is_open


async def test_a_side_that_leaves_bytes_unread_has_hung_up_too() -> None:
    with ends() as pair:
        pair.near.send(frames.encode(step(1)))
        pair.raw.close()
        await asyncio.wait_for(pair.hung_up.wait(), 10)
        assert pair.broken == []


async def test_what_waits_can_be_sent_before_the_end() -> None:
    count = 20
    with ends() as pair:
        frame = frames.encode(frames.Abort(["x" * 100_000]))
        for _ in range(count):
            pair.near.send(frame)
        assert pair.near.outbox_bytes > 0
        reading = asyncio.create_task(asyncio.to_thread(read_all, pair.raw))
        await asyncio.to_thread(pair.near.send_rest, 10.0)
        pair.near.close()
        assert await reading == count * framed(frame)


async def test_what_waits_is_given_up_when_nobody_reads() -> None:
    with ends() as pair:
        while not pair.near.outbox_bytes:
            pair.near.send(frames.encode(frames.Abort(["x" * 100_000])))
        pair.near.send_rest(0.01)
        assert pair.near.outbox_bytes == 0


async def test_a_frame_that_its_receiver_fails_on_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ends() as pair:
        pair.got = Mock(side_effect=[OSError("no space"), None, None])
        data = b"".join(framed(frames.encode(frames.Abort([str(n)]))) for n in range(3))
        for piece in (data[:-3], data[-3:]):
            pair.raw.sendall(piece)
            pair.near.receive_rest()
        assert [frame.request_ids for frame in pair.received] == [["0"], ["1"], ["2"]]
        assert pair.broken == []
    assert "a frame could not be taken: Abort" in caplog.text


async def test_a_channel_closed_by_a_frame_hands_over_no_further_one() -> None:
    with ends() as pair:
        pair.raw.sendall(3 * framed(frames.encode(frames.Drain())))
        pair.got = pair.near.close
        pair.near.receive_rest()
        assert pair.received == [frames.Drain()]


@given(st.binary(max_size=64))
def test_no_bytes_crash_a_decoder(data: bytes) -> None:
    for decoder in (frames.TO_WORKER, frames.FROM_WORKER):
        try:
            frame = decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        assert isinstance(frame, frames.Frame)


SPEC = WorkerSpec(model_id="m@1", source="smollm2", state_dir=Path("/var/x"))
REQUEST = GenerationRequest(
    request_id="a.1",
    prompt=Chat((Message("user", "héllo"),)),
    sampling=SamplingParams(stop=("\n",), logit_bias={3: -1.5}, seed=2**63),
    deadline=12.5,
)
CHUNK = Chunk(
    0,
    "x",
    [1],
    [TokenLogprob(1, b"x", None, [TopLogprob(2, b"\xff", -0.5)])],
    "stop",
    3,
    Usage(1, 2, 3),
    Timing(0.1, 0.2, 0.3, 4),
)


@pytest.mark.parametrize(
    "frame",
    [
        frames.Load(SPEC),
        frames.Generate(REQUEST),
        frames.Generate(GenerationRequest(request_id="b", prompt=[1, 2])),
        frames.Abort(["a", "b"]),
        frames.Tokenize("c", "text", add_special_tokens=False),
        frames.Detokenize("c", [1, 2]),
        frames.Drain(),
        frames.Stop(),
    ],
)
def test_what_goes_to_a_worker_comes_out_equal(frame: frames.ToWorker) -> None:
    assert frames.TO_WORKER.decode(frames.encode(frame)) == frame


@pytest.mark.parametrize(
    "frame",
    [
        frames.Hello(os.getpid()),
        frames.Progress("reading", 0.5),
        frames.Step([Delivery("a", CHUNK)], EngineStats(num_running=1)),
        frames.Reply("c", [1, 2]),
        frames.Reply("c", "text"),
        frames.Heartbeat(3, has_work=True, memory_bytes=1 << 40, stats=EngineStats()),
    ],
)
def test_what_comes_from_a_worker_comes_out_equal(frame: frames.FromWorker) -> None:
    assert frames.FROM_WORKER.decode(frames.encode(frame)) == frame


def test_an_error_keeps_its_kind_and_its_fields() -> None:
    error = QueueFullError("full", param="model", retry_after=2.5)
    data = frames.encode(frames.Step([Delivery("a", None, error)], EngineStats()))
    frame = frames.FROM_WORKER.decode(data)
    assert isinstance(frame, frames.Step)
    again = frame.deliveries[0].error
    assert isinstance(again, QueueFullError)
    assert (again.message, again.param, again.retry_after) == ("full", "model", 2.5)
