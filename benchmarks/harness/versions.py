"""Changes the versions of a running Headrace, and remembers which one may answer at what moment."""

import asyncio
import time
from typing import Any

import msgspec

from harness.client import STATUS_OK, HttpClient, ServerError
from harness.timeline import Timeline

ACCEPTED, NOT_FOUND = 202, 404
POLL = 0.1  # seconds
PATIENCE = 300.0  # seconds for a version to load or to end


class Versions:
    """One model's versions, by number, over HTTP."""

    def __init__(self, http: HttpClient, name: str) -> None:
        self._http = http
        self._name = name
        self.timeline = Timeline(f"{name}@1")
        self._moves: list[float] = []
        self.loads: list[tuple[float, float]] = []  # from the request until it was ready

    async def load(self, version: int, source: str, engine: dict[str, Any]) -> None:
        """Load it in the background and return when it is ready."""
        asked = time.monotonic()
        body = {"name": self._name, "source": source, "version": version, "engine": engine}
        await self._post("/load", body, ACCEPTED)
        async with asyncio.timeout(PATIENCE):
            while (found := await self.find(version)) is None or found["state"] != "ready":
                if found is None or found["state"] == "failed":
                    raise ServerError(f"version {version} did not load: {found}")
                await asyncio.sleep(POLL)
        self.loads.append((asked, time.monotonic()))

    async def swap(self, version: int) -> None:
        await self._move("swap", {"model_id": f"{self._name}@{version}"}, version)

    async def rollback(self, version: int) -> None:
        """Return to the version before, which must be `version`."""
        await self._move("rollback", {"name": self._name}, version)

    def take_moves(self) -> list[float]:
        """Milliseconds, as the server says, of each swap and rollback since this was asked last."""
        moves, self._moves = self._moves, []
        return moves

    async def unload(self, version: int) -> None:
        """Return when its processes have ended."""
        await self._post(f"/{self._name}@{version}/unload", {}, ACCEPTED)
        async with asyncio.timeout(PATIENCE):
            while await self.find(version) is not None:  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(POLL)

    async def executor(self, version: int) -> str:
        found = await self.find(version)
        assert found is not None, "asked of a loaded one"
        return str(found["executor"])

    async def find(self, version: int) -> dict[str, Any] | None:
        status, body = await self._http.get(f"/api/v1/models/{self._name}@{version}")
        if status == NOT_FOUND:
            return None
        return _decoded(status, body, STATUS_OK)

    async def _move(self, kind: str, body: dict[str, Any], version: int) -> None:
        asked = time.monotonic()
        answer = await self._post(f"/{kind}", body, STATUS_OK)
        model_id = f"{self._name}@{version}"
        if answer["active"] != model_id:
            raise ServerError(f"a {kind} to {model_id} led to {answer['active']}")
        self.timeline.moved(model_id, asked, time.monotonic())
        self._moves.append(answer["duration_ms"])

    async def _post(self, path: str, body: dict[str, Any], expected: int) -> dict[str, Any]:
        parts: list[bytes] = []
        status = await self._http.exchange("POST", f"/api/v1/models{path}", parts.append, body)
        return _decoded(status, b"".join(parts), expected)


def _decoded(status: int, body: bytes, expected: int) -> dict[str, Any]:
    if status != expected:
        raise ServerError(f"HTTP {status}: {body[:500].decode(errors='replace')}")
    return msgspec.json.decode(body, type=dict[str, Any])
