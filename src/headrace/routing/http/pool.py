"""The connections to one server: kept for a while after an answer, the last used one first."""

import asyncio
import os
import socket
import ssl

from headrace.routing.http.connection import HttpConnection
from headrace.routing.http.errors import UnreachableError

KEEPALIVE_TIMEOUT = 15.0  # seconds that an idle connection is kept


class Pool:
    """Opens as many as are asked for: whoever asks counts."""

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None, *, connect_timeout: float
    ) -> None:
        self._address = host, port
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._loop = asyncio.get_running_loop()
        self._open: set[HttpConnection] = set()
        self._idle: list[HttpConnection] = []  # the last used one at the end
        self._sweep: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] | None = None

    def take(self) -> HttpConnection | None:
        """One that is kept, as long as there is one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and connection.is_quiet:
                return connection
            connection.abort()
        return None

    async def connect(self) -> HttpConnection:
        connection = await self._connected()
        if self._closed is not None or not connection.is_usable:
            connection.abort()
            raise UnreachableError("the connection broke")
        self._open.add(connection)
        return connection

    async def close(self) -> None:
        """Abort all of them, with what is asked on them; return when they are gone."""
        if self._sweep is not None:
            self._sweep.cancel()
        if self._closed is None:
            self._closed = self._loop.create_future()
        for connection in list(self._open):
            connection.abort()
        if self._open:
            await asyncio.shield(self._closed)

    async def _connected(self) -> HttpConnection:
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await self._opened()
        except TimeoutError:
            raise UnreachableError("no connection in time") from None
        except ssl.SSLCertVerificationError as error:
            complaint = f"its certificate is not trusted: {error.verify_message}"
            raise UnreachableError(complaint) from None
        except ssl.SSLError:
            raise UnreachableError("TLS with it failed") from None
        except (socket.gaierror, UnicodeError):
            raise UnreachableError("its host name is not known") from None
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else "none of its addresses answers"
            raise UnreachableError(f"no connection: {reason}") from None

    async def _opened(self) -> HttpConnection:
        host, port = self._address
        _, connection = await self._loop.create_connection(
            lambda: HttpConnection(self._keep, self._forget),
            host,
            port,
            ssl=self._tls,
            server_hostname=None if self._tls is None else host,
        )
        return connection

    # What connections call

    def _keep(self, connection: HttpConnection) -> None:
        if self._closed is not None:
            connection.abort()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(KEEPALIVE_TIMEOUT, self._close_old)

    def _forget(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._closed is not None and not self._open and not self._closed.done():
            self._closed.set_result(None)

    def _close_old(self) -> None:
        """One timer for all: those that are idle for the longest time stand first."""
        self._sweep = None
        latest = self._loop.time() - KEEPALIVE_TIMEOUT
        while self._idle and self._idle[0].idle_since <= latest:
            self._idle.pop(0).abort()
        if self._idle:
            at = self._idle[0].idle_since + KEEPALIVE_TIMEOUT
            self._sweep = self._loop.call_at(at, self._close_old)
