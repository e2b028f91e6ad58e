"""The last requests of experiments, for the feedback that may come. Bounded in number and age."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.errors import FeedbackGivenError, RequestNotFoundError

MAX_REQUESTS = 50_000  # about 20 MB
MAX_AGE = 24 * 3600.0  # seconds


@dataclass(slots=True)
class RecentRequest:
    """Who asked, and which version answered; `at` is a Unix time."""

    request_id: str
    experiment_id: str
    model_id: str
    user: str
    at: float
    score: float | None = None  # no feedback yet


class RecentRequests:
    """In the order in which they ended; the oldest make room."""

    def __init__(self, *, max_requests: int = MAX_REQUESTS, max_age: float = MAX_AGE) -> None:
        self._max_requests = max_requests
        self._max_age = max_age
        self._requests = OrderedDict[str, RecentRequest]()  # a dict finds its first slowly

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[RecentRequest]:
        return iter(self._requests.values())

    def add(self, request: RecentRequest) -> None:
        """Of those with one id the first counts: whoever repeats a stranger's gets no feedback."""
        self._forget_old(request.at)
        self._requests.setdefault(request.request_id, request)
        self._forget_old(request.at)

    def take(self, request_id: str, score: float, now: float) -> RecentRequest:
        """The request that a score is for, which has it from now on."""
        self._forget_old(now)
        request = self._requests.get(request_id)
        if request is None:
            raise RequestNotFoundError(
                f"No request {request_id[:80]!r} of a running experiment is remembered: at most the"
                f" last {self._max_requests:,} of {self._max_age / 3600:g} hours are.",
                param="request_id",
            )
        if request.score is not None:
            raise FeedbackGivenError(
                f"Request {request_id[:80]!r} has its feedback already.", param="request_id"
            )
        request.score = score
        return request

    def forget(self, experiment_id: str) -> None:
        """Those of an experiment that is over."""
        kept = (each for each in self if each.experiment_id != experiment_id)
        self._requests = OrderedDict((each.request_id, each) for each in kept)

    def restore(self, requests: Iterable[RecentRequest], now: float) -> None:
        """Take up those of the life before, the oldest first."""
        for request in requests:
            self.add(request)
        self._forget_old(now)

    def _forget_old(self, now: float) -> None:
        while self._requests:
            oldest = next(iter(self._requests.values()))
            if len(self._requests) <= self._max_requests and now - oldest.at <= self._max_age:
                return
            del self._requests[oldest.request_id]
