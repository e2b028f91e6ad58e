"""The least that a Python gateway does: Starlette takes a request, aiohttp sends it on.

python -m harness.bare_proxy PORT URL
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route


class Forward:
    """Sends every request to one server and its answer back, a stream piece by piece."""

    def __init__(self, url: str) -> None:
        self._url = url

    @asynccontextmanager
    async def session(self, _: Starlette) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            self._session = session
            yield

    async def forward(self, request: Request) -> Response:
        answer = await self._session.request(
            request.method,
            self._url + request.url.path,
            data=await request.body(),
            headers={"content-type": "application/json"},
        )
        headers = {"content-type": answer.headers["content-type"]}
        if answer.content_length is None:
            return StreamingResponse(_pieces(answer), answer.status, headers)
        async with answer:
            return Response(await answer.read(), answer.status, headers)


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async with answer:
        async for piece in answer.content.iter_any():
            yield piece


def main() -> None:
    _, port, url = sys.argv
    proxy = Forward(url)
    routes = [Route("/{path:path}", proxy.forward, methods=["GET", "POST"])]
    app = Starlette(routes=routes, lifespan=proxy.session)
    uvicorn.run(app, port=int(port), access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
