"""Which versions of a model may have taken a request at which moment. Knows no server."""

from dataclasses import dataclass

ALWAYS = float("inf")


@dataclass(slots=True)
class Span:
    """A version was active at most from `first` to `last`, on the monotonic clock."""

    version: str
    first: float
    last: float = ALWAYS


class Timeline:
    """The pointer moves at some moment between a swap's request and its answer.

    So the new version may answer from the request on, and the old one until the answer.
    """

    def __init__(self, version: str) -> None:
        self._spans = [Span(version, -ALWAYS)]

    def moved(self, version: str, asked: float, answered: float) -> None:
        self._spans[-1].last = answered
        self._spans.append(Span(version, asked))

    def allows(self, version: str | None, sent: float, first_output: float) -> bool:
        """Whether that version may have taken a request sent and first answered at these times."""
        return any(
            span.version == version and span.first <= first_output and sent <= span.last
            for span in self._spans
        )
