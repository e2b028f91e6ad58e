import asyncio

from harness.probe import HealthProbe
from scripted_server import listening


async def asked(probe: HealthProbe, times: int) -> None:
    while probe.num_asked < times:  # noqa: ASYNC110 - it asks on a beat of its own
        await asyncio.sleep(0.01)


async def test_an_answered_beat_has_a_delay() -> None:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with listening(answer) as script:
        probe = HealthProbe(script.url, "/health/live")
        await asked(probe, 2)
        found = await probe.close()
    assert found.p50 is not None
    assert found.p50 >= 0
    assert probe.num_missed == 0


async def test_a_beat_without_a_good_answer_is_missed() -> None:
    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")

    async with listening(answer) as script:
        probe = HealthProbe(script.url, "/health/live")
        await asked(probe, 1)
        found = await probe.close()
    assert probe.num_missed >= 1
    assert found.p50 is None


async def test_a_server_that_has_gone_is_missed() -> None:
    async with listening(_nothing) as script:
        url = script.url
    probe = HealthProbe(url, "/health/live")
    await asked(probe, 1)
    await probe.close()
    assert probe.num_missed >= 1


async def _nothing(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.close()
