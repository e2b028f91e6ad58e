"""Gives versions to requests: finds the one that is meant and waits until it answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.endpoints import Router
from headrace.errors import DrainingError
from headrace.registry.catalogue import Catalogue
from headrace.registry.drain import Drain
from headrace.registry.residency import Residency
from headrace.registry.version import Version


class Lending:
    """Counts the requests of all models."""

    def __init__(self, catalogue: Catalogue, residency: Residency, drain: Drain) -> None:
        self._catalogue = catalogue
        self._residency = residency
        self._drain = drain
        self.num_leases = 0
        self._unused = asyncio.Event()
        self._unused.set()

    @asynccontextmanager
    async def acquire(self, name: str, deadline: float | None) -> AsyncIterator[Router]:
        version = self._catalogue.find(name)
        self._refuse_when_draining(version)
        if version.refusal is not None:
            version = await self._answering(name, deadline)
        self.num_leases += 1
        self._unused.clear()
        try:
            with version.lease() as model:
                yield model
        finally:
            self.num_leases -= 1
            if self.num_leases == 0:
                self._unused.set()

    async def unused(self) -> None:
        """Wait until every request has ended."""
        await self._unused.wait()

    async def _answering(self, name: str, deadline: float | None) -> Version:
        """The version to lease, once it answers; raises why it will not soon."""
        while (refusal := (version := self._catalogue.find(name)).refusal) is not None:
            model = self._catalogue.models[version.spec.name]
            if model.is_closed:
                await model.opened(deadline, self._residency.load_seconds)
            elif self._residency.can_wake(version):
                await self._residency.wake(version, deadline)
            else:
                raise refusal
            self._refuse_when_draining(version)
        return version

    def _refuse_when_draining(self, version: Version) -> None:
        if self._drain.has_begun:
            raise DrainingError(
                "the server is shutting down",
                retry_after=version.retry_after_stop(self._drain.ends_at),
            )
