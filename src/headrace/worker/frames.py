"""What the api process and a worker say to each other, and its encoding as MessagePack.

Frames are tagged arrays. Knows nothing of sockets or of time.
"""

from pathlib import Path
from typing import Any

import msgspec

from headrace.engine.delivery import Delivery
from headrace.errors import HeadraceError, from_code
from headrace.generation import EngineStats, GenerationRequest, ModelInfo, Prompt
from headrace.worker.spec import WorkerSpec


class Frame(msgspec.Struct, array_like=True, tag=True):
    """One message; its tag is the name of its class."""


class Load(Frame):
    """Load this model; sent once, first."""

    spec: WorkerSpec


class Generate(Frame):
    """Answer this request in deliveries; the id is unique among all that the worker ever gets."""

    request: GenerationRequest


class Abort(Frame):
    """Nobody listens to these requests any more."""

    request_ids: list[str]


class Tokenize(Frame):
    call_id: str
    prompt: Prompt
    add_special_tokens: bool


class Detokenize(Frame):
    call_id: str
    token_ids: list[int]


class Drain(Frame):
    """Take nothing new, finish what runs, then exit."""


class Stop(Frame):
    """Exit now; what runs is aborted."""


class Hello(Frame):
    """The process is there and waits for its `Load`."""

    pid: int


class Progress(Frame):
    """How far loading has come: a phase, such as packing or warming, and its share, 0 to 1."""

    phase: str
    share: float


class Ready(Frame):
    info: ModelInfo


class Failed(Frame):
    """The model cannot be loaded. The worker then waits to be stopped."""

    error: HeadraceError


class Step(Frame):
    """Everything that one step of the engine brought, for all sequences."""

    deliveries: list[Delivery]
    stats: EngineStats


class Reply(Frame):
    """The answer to a `Tokenize` (a list) or a `Detokenize` (a string), or why there is none."""

    call_id: str
    result: list[int] | str | None
    error: HeadraceError | None = None


class Heartbeat(Frame):
    """A sign of life: steps since the start, whether work remains, resident bytes."""

    num_steps: int
    has_work: bool
    memory_bytes: int
    stats: EngineStats


ToWorker = Load | Generate | Abort | Tokenize | Detokenize | Drain | Stop
FromWorker = Hello | Progress | Ready | Failed | Step | Reply | Heartbeat


def encode(frame: ToWorker | FromWorker) -> bytes:
    """Raises OverflowError or UnicodeEncodeError for a value that no frame can hold."""
    return _ENCODER.encode(frame)


def _encode_other(value: object) -> object:
    if isinstance(value, HeadraceError):
        return value.code, value.message, value.param, value.retry_after
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} in a frame")


def _decode_other(kind: type, value: Any) -> object:  # noqa: ANN401 - whatever MessagePack holds
    if kind is Path:
        return Path(value)
    code, message, param, retry_after = msgspec.convert(value, _ErrorFields)
    return from_code(code, message, param=param, retry_after=retry_after)


_ErrorFields = tuple[str, str, str | None, float | None]
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_other)

TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(
    ToWorker, dec_hook=_decode_other
)
FROM_WORKER: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(
    FromWorker, dec_hook=_decode_other
)
