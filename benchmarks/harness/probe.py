"""Asks a server for its health on a fixed beat, and keeps how late each answer was."""

import asyncio
import time
from contextlib import suppress

from harness.client import STATUS_OK, HttpClient
from harness.summary import Percentiles, percentiles

INTERVAL = 0.05


class HealthProbe:
    """A delay counts from the planned moment, so a stall is seen by every beat that it covers."""

    def __init__(self, url: str, path: str) -> None:
        self._http = HttpClient(url)
        self._path = path
        self.num_missed = 0
        self._delays: list[float] = []
        self._beats = asyncio.create_task(self._run())

    @property
    def num_asked(self) -> int:
        return len(self._delays) + self.num_missed

    async def close(self) -> Percentiles:
        self._beats.cancel()
        with suppress(asyncio.CancelledError):
            await self._beats
        self._http.close()
        return percentiles(self._delays)

    async def _run(self) -> None:
        planned = time.monotonic()
        while True:
            planned += INTERVAL
            await asyncio.sleep(max(0.0, planned - time.monotonic()))
            if await self._is_answered():
                self._delays.append(time.monotonic() - planned)
            else:
                self.num_missed += 1

    async def _is_answered(self) -> bool:
        try:
            status, _ = await self._http.get(self._path)
        except (OSError, TimeoutError):
            return False
        return status == STATUS_OK
