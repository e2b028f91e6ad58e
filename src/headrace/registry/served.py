"""A model under its name: its versions, and which of them answers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from headrace.errors import ConflictError
from headrace.registry.version import Version
from headrace.registry.waiting import WaitingRoom


class ServedModel:
    """Holds the pointer to the active version; one change of it may run at a time."""

    def __init__(self, name: str, declaration: str = "") -> None:
        self.name = name
        self.declaration = declaration  # the digest of how it is declared, if it is
        self.versions: dict[int, Version] = {}
        self.active: Version | None = None
        self.previous: Version | None = None
        self.change: str | None = None
        self.turn = asyncio.Lock()
        """Held by whoever moves the pointer or writes down what became of a version."""
        self._gate: asyncio.Event | None = None
        self._room: WaitingRoom | None = None

    @property
    def latest(self) -> Version | None:
        return max(self.versions.values(), key=lambda each: each.spec.version, default=None)

    def replaced_by(self, version: Version) -> Version | None:
        """Where a rollback from it would lead; never to a version that failed."""
        replaced = self.previous if self.active is version else self.active
        return None if replaced is None or replaced.state == "failed" else replaced

    def point_to(self, version: Version) -> None:
        """Make it the active one: from now on requests by name go there."""
        previous, replaced = self.replaced_by(version), self.active
        if replaced is not None and replaced.lifecycle.can_move("deprecated"):
            replaced.move("deprecated")
        self.active, self.previous = version, previous
        version.move("active")

    def others(self, version: Version) -> list[Version]:
        """Every other version that is here to stay."""
        return [v for v in self.versions.values() if v is not version and v.state != "unloading"]

    def put(self, version: Version) -> None:
        """Take in a new version; it may stand in for a failed one of its number."""
        failed = self.versions.get(version.spec.version)
        self.versions[version.spec.version] = version
        if failed is not None and self.active is failed:
            self.active = version
        if failed is not None and self.previous is failed:
            self.previous = version

    def remove(self, version: Version) -> None:
        if self.versions.get(version.spec.version) is version:
            del self.versions[version.spec.version]
        if self.active is version:
            self.active = None
        if self.previous is version:
            self.previous = None

    def refuse_known(self, number: int) -> None:
        """Raise ConflictError for a version that is there; a failed one may be tried anew."""
        known = self.versions.get(number)
        if known is not None and known.state != "failed":
            raise ConflictError(f"{known.model_id} is already there, as {known.state}")

    def refuse_change(self) -> None:
        if self.change is not None:
            raise ConflictError(f"{self.name}: another change is running ({self.change})")

    @asynccontextmanager
    async def changing(self, kind: str) -> AsyncIterator[None]:
        """Raises ConflictError while another change runs; waits for what the server notes down."""
        self.refuse_change()
        self.change = kind
        try:
            async with self.turn:
                yield
        finally:
            self.change = None

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Let requests wait meanwhile, because no version can be in memory."""
        assert self.active is not None, "only what is active is replaced"
        gate, version = asyncio.Event(), self.active
        self._gate, version.is_open = gate, False
        try:
            yield
        finally:
            self._gate, version.is_open = None, True
            gate.set()

    @property
    def is_closed(self) -> bool:
        return self._gate is not None

    async def opened(self, deadline: float | None, retry_after: float) -> None:
        """Wait, with a bounded number of others, until requests are taken again."""
        if self._gate is None:
            return
        if self._room is None:
            assert self.active is not None, "only what is active is replaced"
            self._room = WaitingRoom(self.active.spec.engine.max_queued_requests)
        await self._room.wait(self._gate.wait, deadline=deadline, retry_after=retry_after)
