import asyncio

import pytest
from harness.load import Load, Sample, closed_loop


class Counted:
    """Answers after a turn of the loop, counting how many requests are out at once."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []
        self.num_out = 0
        self.most_out = 0

    async def send(self, prompt: list[int]) -> Sample:
        self.prompts.append(prompt)
        self.num_out += 1
        self.most_out = max(self.most_out, self.num_out)
        await asyncio.sleep(0)
        self.num_out -= 1
        return Sample(0.0, [0.0])


def load(*, users: int, prompts: int, least: int, seconds: float = 0.0) -> Load:
    return Load([[number] for number in range(prompts)], users, 8, least, seconds)


@pytest.mark.parametrize("users", [1, 4, 32])
async def test_as_many_requests_are_out_as_there_are_users(users: int) -> None:
    counted = Counted()
    run = await closed_loop(counted.send, load(users=users, prompts=500, least=3 * users))
    assert counted.most_out == users
    assert len(run.samples) >= 3 * users


async def test_every_request_has_a_prompt_of_its_own() -> None:
    counted = Counted()
    await closed_loop(counted.send, load(users=4, prompts=100, least=20))
    assert counted.prompts == [[number] for number in range(len(counted.prompts))]


async def test_the_load_ends_when_its_prompts_run_out() -> None:
    counted = Counted()
    run = await closed_loop(counted.send, load(users=3, prompts=7, least=100, seconds=60))
    assert len(run.samples) == 7


async def test_the_window_ends_when_the_first_user_stops() -> None:
    may_end = asyncio.Event()

    async def send(prompt: list[int]) -> Sample:
        if prompt == [0]:
            await may_end.wait()
        elif prompt == [3]:
            may_end.set()
        return Sample(0.0, [asyncio.get_running_loop().time()])

    run = await closed_loop(send, load(users=2, prompts=50, least=4))
    assert run.started <= run.full_until
    assert max(sample.arrivals[0] for sample in run.samples) >= run.full_until - 1.0
