"""What a worker owes an answer to, encoded as it was sent, so that the next worker can have it.

Knows nothing of channels: it says what is to be sent and what has to fail. An answer that has begun
goes on where it was. A request that may be what kills the workers gets its last try when no other
such request is being tried, so that it takes no innocent one along.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.errors import HeadraceError, QueueFullError, WorkerDiedError
from headrace.worker import frames
from headrace.worker.resumable import Resumable

MAX_SENDS = 3  # of a request of which nothing comes: then it is taken for what killed the workers
MAX_DEATHS = 10  # of workers that had a request, whatever came of it
MAX_BYTES = 256 << 20
RATE_WINDOW = 64  # answers
MIN_RETRY_AFTER, MAX_RETRY_AFTER = 1.0, 60.0  # seconds


@dataclass(slots=True)
class Owed:
    """One request or call: its frame, and how to tell its caller that there is no answer.

    A call, which is answered at once or not at all, has no `answer`.
    """

    data: bytes
    fail: Callable[[HeadraceError], None]
    answer: Resumable | None = None
    num_sends: int = 0
    num_deaths: int = 0
    is_out: bool = False
    """Whether the worker of now has it."""
    has_moved: bool = False
    """Whether something has come of it since it was sent last."""

    @property
    def is_condemned(self) -> bool:
        return self.num_sends >= MAX_SENDS or self.num_deaths >= MAX_DEATHS

    def note_death(self) -> None:
        """The worker that had it is gone; a request of which something came was not why."""
        if self.is_out:
            self.is_out = False
            self.num_deaths += 1
            if self.has_moved:
                self.num_sends = 0

    def send(self) -> bytes:
        """Its frame for one more worker."""
        self.num_sends += 1
        self.is_out, self.has_moved = True, False
        if self.answer is None or self.num_deaths == 0:
            return self.data
        frame = frames.TO_WORKER.decode(self.data)
        assert isinstance(frame, frames.Generate), "calls have no answer that grows"
        return frames.encode(frames.Generate(self.answer.resume(frame.request)))


class OwedAnswers:
    """A table in order of arrival, bounded by number and by bytes."""

    def __init__(self, max_entries: int, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: dict[str, Owed] = {}
        self._bytes = 0
        self._suspects: deque[str] = deque()
        self._on_trial = ""
        self._settled_at: deque[float] = deque(maxlen=RATE_WINDOW)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, answer_id: str) -> Owed | None:
        return self._entries.get(answer_id)

    def add(self, answer_id: str, owed: Owed, now: float) -> None:
        if len(self._entries) >= self._max_entries:
            raise QueueFullError(
                f"{len(self._entries)} requests are already in flight",
                retry_after=self.retry_after(now),
            )
        if self._bytes + len(owed.data) > self._max_bytes:
            raise QueueFullError(
                f"the requests in flight hold {self._bytes} bytes, of {self._max_bytes} at most",
                retry_after=self.retry_after(now),
            )
        self._entries[answer_id] = owed
        self._bytes += len(owed.data)

    def settle(self, answer_id: str, now: float) -> Owed | None:
        """The caller has its answer, or has left."""
        if (owed := self._entries.pop(answer_id, None)) is not None:
            self._bytes -= len(owed.data)
            self._settled_at.append(now)
        return owed

    def retry_after(self, now: float) -> float:
        """Seconds until an eighth of the table will have been answered at the measured rate."""
        if len(self._settled_at) < 2:  # noqa: PLR2004 - a rate takes two
            return MIN_RETRY_AFTER
        seconds_each = (now - self._settled_at[0]) / (len(self._settled_at) - 1)
        return min(MAX_RETRY_AFTER, max(MIN_RETRY_AFTER, seconds_each * self._max_entries / 8))

    def to_send(self) -> Iterator[bytes]:
        """What a worker that has nothing yet may have at once; `next_suspect` gives the rest."""
        self._suspects.clear()
        self._on_trial = ""
        for answer_id, owed in self._entries.items():
            if owed.num_sends == MAX_SENDS - 1:
                self._suspects.append(answer_id)
            else:
                yield owed.send()

    def next_suspect(self) -> bytes | None:
        """The next last try, once the one before has begun to be answered or is settled."""
        if not self._suspects:
            return None
        on_trial = self._entries.get(self._on_trial)
        if on_trial is not None and not on_trial.has_moved:
            return None
        while self._suspects:
            self._on_trial = self._suspects.popleft()
            if (owed := self._entries.get(self._on_trial)) is not None:
                return owed.send()
        return None

    def lost(self, reason: str) -> list[tuple[str, WorkerDiedError]]:
        """What is not to be sent again after the worker that had it ended for this reason."""
        for owed in self._entries.values():
            owed.note_death()
        return [
            (answer_id, _verdict(owed, reason))
            for answer_id, owed in self._entries.items()
            if owed.is_condemned
        ]

    def ids(self) -> list[str]:
        return list(self._entries)


def _verdict(owed: Owed, reason: str) -> WorkerDiedError:
    return WorkerDiedError(f"{reason}; {owed.num_deaths} workers in a row ended with this request")
