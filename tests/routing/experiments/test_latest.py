import asyncio
from math import inf

from headrace.routing.experiments.latest import Latest
from headrace.routing.experiments.state import Reading


class Looks:
    """Each takes until it is let go; counts those at once."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.taken = 0
        self.running = 0

    async def look(self) -> Reading:
        self.taken += 1
        self.running += 1
        assert self.running == 1
        try:
            await self.may_end.wait()
        finally:
            self.running -= 1
        return Reading(variants=(), better=None, waiting_for=f"look {self.taken}")


async def test_however_many_ask_one_look_is_taken() -> None:
    latest, looks = Latest(inf), Looks()
    asking = [asyncio.create_task(latest.get(looks.look)) for _ in range(100)]
    await asyncio.sleep(0)
    looks.may_end.set()
    assert {reading.waiting_for for reading in await asyncio.gather(*asking)} == {"look 1"}


async def test_one_that_is_old_is_taken_anew_and_one_at_a_time() -> None:
    latest, looks = Latest(0.0), Looks()
    looks.may_end.set()
    readings = await asyncio.gather(*(latest.get(looks.look) for _ in range(5)))
    assert [reading.waiting_for for reading in readings] == [f"look {i}" for i in range(1, 6)]


async def test_who_leaves_in_the_middle_of_a_look_leaves_it_to_the_next() -> None:
    latest, looks = Latest(inf), Looks()
    leaving, staying = (asyncio.create_task(latest.get(looks.look)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    looks.may_end.set()
    assert (await staying).waiting_for == "look 2"
    assert leaving.cancelled()
