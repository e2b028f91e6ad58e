"""Certificates, good and bad, of a real server."""

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from headrace.endpoints import UpstreamConfig
from headrace.errors import ConfigurationError
from headrace.routing.upstream.errors import UpstreamUnreachableError
from headrace.routing.upstream.relay import UpstreamRelay
from headrace.routing.upstream.upstream import Upstream
from routing.upstream.asking import answer, chunks
from routing.upstream.conftest import Start
from routing.upstream.misbehaving_server import WHOLE, Peer

AUTHORITY = trustme.CA()


def server_side(authority: trustme.CA, host: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(host).configure_cert(context)
    return context


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(str(path))
    return path


async def whole(peer: Peer) -> None:
    await peer.stream(*WHOLE)


async def test_a_certificate_of_the_extra_authority_is_trusted(start: Start, ca_file: Path) -> None:
    upstream, server = await start(whole, tls=server_side(AUTHORITY), ca_file=ca_file)
    assert (await answer(upstream)).text == "Hello you"
    assert (await answer(upstream)).text == "Hello you"
    assert server.num_connections == 1


async def test_a_certificate_of_nobody_known_is_not_trusted(start: Start) -> None:
    upstream, server = await start(whole, tls=server_side(AUTHORITY))
    with pytest.raises(UpstreamUnreachableError, match=r"upstream up: its certificate is not trus"):
        await chunks(upstream)
    assert not server.requests


async def test_a_certificate_of_another_host_is_not_trusted(start: Start, ca_file: Path) -> None:
    tls = server_side(AUTHORITY, "elsewhere.example")
    upstream, server = await start(whole, tls=tls, ca_file=ca_file)
    with pytest.raises(UpstreamUnreachableError, match=r"its certificate is not trusted"):
        await chunks(upstream)
    assert not server.requests


async def test_a_certificate_that_changes_to_a_wrong_one_and_back(
    start: Start, ca_file: Path
) -> None:
    upstream, server = await start(whole, tls=server_side(AUTHORITY), ca_file=ca_file)
    await answer(upstream)
    await server.stop()
    server.tls = server_side(trustme.CA())
    await server.start()
    with pytest.raises(UpstreamUnreachableError, match="its certificate is not trusted"):
        await chunks(upstream)
    await server.stop()
    server.tls = server_side(AUTHORITY)
    await server.start()
    assert (await answer(upstream)).text == "Hello you"


async def test_a_server_without_tls_is_not_reached_by_it() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.transport.abort()
        gone.set()

    gone = asyncio.Event()
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with Upstream(UpstreamConfig(url=url, model="m", dialect="openai")) as upstream:
        with pytest.raises(UpstreamUnreachableError, match="TLS with it failed"):
            await chunks(upstream)
    await asyncio.wait_for(gone.wait(), 10)
    server.close()


async def test_a_server_with_tls_is_not_reached_without_it(start: Start) -> None:
    _, server = await start(whole, tls=server_side(AUTHORITY))
    config = UpstreamConfig(url=server.url.replace("https:", "http:"), model="m", dialect="openai")
    async with Upstream(config) as upstream:
        with pytest.raises(UpstreamUnreachableError, match="the connection broke"):
            await chunks(upstream)


async def taken_slowly(answered: UpstreamRelay) -> bytes:
    got: list[bytes] = []

    def take(piece: bytes) -> bool:
        got.append(piece)
        return False

    while not await answered.forward(take):
        pass
    return b"".join(got)


async def test_large_bodies_pass_both_ways_whoever_is_slow(start: Start, ca_file: Path) -> None:
    body = bytes(range(256)) * (32 << 10)  # 8 MiB

    async def echo(peer: Peer) -> None:
        assert peer.asked.body == body
        await peer.answer(body)

    upstream, server = await start(echo, tls=server_side(AUTHORITY), ca_file=ca_file)
    for _ in range(2):
        assert await taken_slowly(await upstream.relay("completions", body, is_stream=True)) == body
    assert server.num_connections == 1


async def test_closing_the_stream_closes_the_connection(start: Start, ca_file: Path) -> None:
    async def hang(peer: Peer) -> None:
        await peer.gone()

    upstream, server = await start(hang, tls=server_side(AUTHORITY), ca_file=ca_file)
    with pytest.raises(Exception, match="deadline"):
        await chunks(upstream, within=0.3)
    await server.someone_left.wait()


@pytest.mark.parametrize("content", [None, "", "no certificate"])
async def test_a_ca_file_without_certificates_stops_the_start(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"ca\.pem: no certificates"):
        Upstream(UpstreamConfig(url="https://host/v1", ca_file=path))
