"""What the next endpoint is asked so that it goes on where the last one was. Knows no transport."""

from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

from headrace.endpoints import Migration
from headrace.generation import GenerationRequest
from headrace.routing.attempts.resumable import Resumable, seeded
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.places import NOBODY, Place, WorkerPlace


class Moving:
    """One request and how far its answer has come.

    A worker, or one of us behind an upstream, is told the tokens so far, and the answer goes on as
    if nothing had happened. Another server is told the text, if `migration` allows it.
    """

    def __init__(
        self, request: GenerationRequest, progress: Resumable, migration: Migration
    ) -> None:
        self._request = request
        self._seeded = seeded(request)  # once: each worker must draw the same tokens
        self._progress = progress
        self._migration = migration

    def request_for(self, place: Place) -> GenerationRequest:
        """What to send there; the place is able to take it."""
        request = self._seeded if _takes_tokens(place, self._request) else self._request
        if not self._progress.num_deaths:
            return request
        if isinstance(place, WorkerPlace) or self._goes_by_tokens(place):
            return self._progress.resume(request)
        if not self._progress.has_begun:
            return request  # which may itself hold the beginning of the answer
        if self._progress.knows_tokens:  # so that limits and usage are right
            request = self._progress.resume(request)
        return msgspec.structs.replace(request, answered_text=self._progress.text)

    def tells_tokens(self, place: Place) -> bool:
        return _takes_tokens(place, self._request)

    def how_to(self, place: Place) -> Literal["tokens", "text"]:
        """What an answer that has begun goes on after there."""
        return "tokens" if self._goes_by_tokens(place) else "text"

    def unable(self, places: Iterable[Place]) -> Collection[Endpoint]:
        """The endpoints that cannot take what is left of it."""
        request = self._request
        is_begun = request.answered or request.answered_text is not None
        if not (is_begun or self._progress.has_begun):
            return NOBODY
        return frozenset(place.endpoint for place in places if not self._is_able(place))

    def _is_able(self, place: Place) -> bool:
        if self._migration == "off" and self._progress.has_begun:
            return False
        return self._goes_by_tokens(place) or self._goes_by_text(place)

    def _goes_by_tokens(self, place: Place) -> bool:
        return self._progress.knows_tokens and _takes_tokens(place, self._request)

    def _goes_by_text(self, place: Place) -> bool:
        return (
            self._migration == "text"
            and self._progress.text is not None
            and not isinstance(place, WorkerPlace)
            and place.upstream.can_resume(self._request, "text")
        )


def _takes_tokens(place: Place, request: GenerationRequest) -> bool:
    return isinstance(place, WorkerPlace) or place.upstream.can_resume(request, "tokens")
