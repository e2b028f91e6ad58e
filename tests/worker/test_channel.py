import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
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
from headrace.worker.channel import FRAMES_A_TURN, MAX_QUEUED_FRAMES, Channel, tuned
from headrace.worker.spec import WorkerSpec


class Ends:
    """Two connected channels that remember what they got."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.context = zmq.Context()
        self.received: list[Any] = []
        self.arrived = asyncio.Event()
        self.broken: list[str] = []
        self.broke = asyncio.Event()
        endpoint = f"ipc://{folder / 's'}"
        self.raw = tuned(self.context.socket(zmq.DEALER))
        self.raw.bind(endpoint)
        self.socket = tuned(self.context.socket(zmq.DEALER))
        self.socket.connect(endpoint)
        self.near = Channel(
            self.socket, frames.TO_WORKER, receive=self._got, broken=self._broke, **options
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
        self.context.term()

    def _broke(self, reason: str) -> None:
        self.broken.append(reason)
        self.broke.set()

    def _got(self, frame: Any) -> None:
        self.received.append(frame)
        self.arrived.set()


@contextmanager
def ends(folder: Path, **options: Any) -> Iterator[Ends]:
    pair = Ends(folder, **options)
    try:
        yield pair
    finally:
        pair.close()


def step(number: int) -> frames.Step:
    return frames.Step([Delivery("r", Chunk(0, str(number), [number]))], EngineStats())


async def test_frames_arrive_in_order_however_many(tmp_path: Path) -> None:
    count = 20 * MAX_QUEUED_FRAMES + FRAMES_A_TURN // 2
    with ends(tmp_path) as pair:
        pair.listen()
        for number in range(count):
            pair.near.send(frames.encode(step(number)))
        await pair.wait_for(count)
        assert [frame.deliveries[0].chunk.token_ids for frame in pair.received] == [
            [number] for number in range(count)
        ]


async def test_nothing_is_lost_when_the_other_side_starts_to_read_late(tmp_path: Path) -> None:
    count = 4 * MAX_QUEUED_FRAMES
    with ends(tmp_path) as pair:
        # Large, so that the system's own socket buffers cannot take what ZeroMQ does not.
        frame = frames.encode(frames.Abort(["x" * 10_000]))
        for _ in range(count):
            pair.near.send(frame)
        assert pair.near.outbox_bytes > 0
        await asyncio.sleep(0)
        pair.listen(frames.TO_WORKER)
        await pair.wait_for(count)
        assert pair.near.outbox_bytes == 0


async def test_both_directions_are_served_at_once(tmp_path: Path) -> None:
    count = 1000
    with ends(tmp_path) as pair:
        far = pair.listen()
        for number in range(count):
            pair.near.send(frames.encode(step(number)))
            far.send(frames.encode(frames.Abort([str(number)])))
        await pair.wait_for(2 * count)
        assert {type(frame) for frame in pair.received} == {frames.Step, frames.Abort}


async def test_frames_of_several_threads_each_arrive_in_order(tmp_path: Path) -> None:
    count, num_threads = 4 * MAX_QUEUED_FRAMES, 3
    with ends(tmp_path) as pair:
        far = pair.listen(frames.TO_WORKER)

        def send_all(thread: int) -> None:
            for number in range(count):
                pair.near.send(frames.encode(frames.Abort([str(thread), str(number)])))

        async def answer() -> None:
            # A call on the socket from another thread may take ZeroMQ's word of these.
            for number in range(count):
                far.send(frames.encode(frames.Abort(["back", str(number)])))
                await asyncio.sleep(0)

        threads = [asyncio.to_thread(send_all, thread) for thread in range(num_threads)]
        await asyncio.gather(*threads, answer())
        await pair.wait_for((num_threads + 1) * count)
        for sender in (*map(str, range(num_threads)), "back"):
            numbers = [f.request_ids[1] for f in pair.received if f.request_ids[0] == sender]
            assert numbers == [str(number) for number in range(count)]


async def test_a_thread_that_fills_the_outbox_breaks_the_channel_on_its_loop(
    tmp_path: Path,
) -> None:
    with ends(tmp_path, max_outbox_bytes=100_000) as pair:
        frame = frames.encode(frames.Abort(["x" * 1000]))

        def fill() -> None:
            while pair.near.outbox_bytes <= 100_000 and pair.near.is_open:
                pair.near.send(frame)

        await asyncio.to_thread(fill)
        await asyncio.wait_for(pair.broke.wait(), 10)
        assert len(pair.broken) == 1
        assert not pair.near.is_open
        await asyncio.to_thread(pair.near.send, frame)  # goes nowhere


async def test_a_peer_that_never_reads_breaks_the_channel_at_its_bound(tmp_path: Path) -> None:
    with ends(tmp_path, max_outbox_bytes=100_000) as pair:
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
async def test_bytes_that_are_no_frame_break_the_channel_once(tmp_path: Path, data: bytes) -> None:
    with ends(tmp_path) as pair:
        pair.raw.send(data)
        pair.raw.send(data)
        await asyncio.wait_for(pair.broke.wait(), 10)
        assert not pair.near.is_open
        assert len(pair.broken) == 1
        assert "malformed" in pair.broken[0]
        assert pair.received == []


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
