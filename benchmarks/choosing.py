"""How long choosing an endpoint takes, by strategy and number of endpoints.

    python benchmarks/choosing.py
    python benchmarks/choosing.py --endpoints 100 --strategies least_load prefix_affinity

Prints microseconds of processor time, median / 99th percentile. Each choice is for another prompt
of some 1000 tokens, half of it shared, and is sent: some requests an endpoint are in flight.
Situations: all endpoints take requests; nine in ten drain; between two choices one begins to drain
and one ends; five were tried before.
"""

import argparse
import time
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import get_args

import numpy as np
from harness import machine
from harness.report import table

from headrace.endpoints import StrategyName
from headrace.routing.balance.endpoint import Endpoint
from headrace.routing.balance.strategy.strategy import RequestKey
from headrace.routing.health.members import Members
from headrace.routing.health.sent import Sent
from headrace.routing.policy import RoutingPolicy

NUM_KEYS = 2000
PROMPT_CHARACTERS = 4000
PROMPT_TOKENS = 1000
SITUATIONS = ("all take requests", "1 in 10 does", "they come and go", "5 were tried")
IN_FLIGHT = 2  # requests an endpoint
INTERVAL = 1e-3  # seconds between two requests, on the members' clock


def main() -> None:
    options = parser().parse_args()
    facts = machine.describe()
    print(f"{facts.cores} cores of {facts.cpu}\n")
    rows = [
        [str(count), situation, *(cell(name, count, situation, options) for name in options.names)]
        for count in options.endpoints
        for situation in SITUATIONS
    ]
    print(table(["endpoints", "situation", *options.names], rows))


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = get_args(StrategyName)
    it.add_argument("--strategies", nargs="+", choices=names, default=names, dest="names")
    it.add_argument("--endpoints", type=int, nargs="+", default=[10, 100, 10_000], metavar="N")
    it.add_argument("--choices", type=int, default=20_000, metavar="N", help="that are timed")
    return it


def cell(name: StrategyName, count: int, situation: str, options: argparse.Namespace) -> str:
    p50, p99 = np.percentile(measure(name, count, situation, options.choices), [50, 99])
    return f"{p50 * 1e6:.1f} / {p99 * 1e6:.1f}"


def measure(name: StrategyName, count: int, situation: str, num_choices: int) -> list[float]:
    """Processor seconds of each choice."""
    random = Random(0)
    endpoints = [Endpoint(f"worker-{n}", random.choice((1, 2, 4))) for n in range(count)]
    members = Members(name, RoutingPolicy(), random)
    for endpoint in endpoints:
        members.add(endpoint, 0.0, is_probed=False)
    away = deque(random.sample(endpoints, num_away(count, situation)))
    for endpoint in away:
        members.set_draining(endpoint, draining=True, now=0.0)
    load = Load(members, IN_FLIGHT * (count - len(away)))
    tried = random.sample(endpoints, min(5, count - 1)) if situation == SITUATIONS[3] else ()
    keys = prompts(random)
    for number in range(load.limit):
        load.choose(keys[number % NUM_KEYS], tried)
    seconds = []
    for number in range(num_choices):
        if situation == SITUATIONS[2]:
            come_and_go(members, endpoints, away, load.now, random)
        seconds.append(load.choose(keys[number % NUM_KEYS], tried))
    return seconds


def num_away(count: int, situation: str) -> int:
    return {SITUATIONS[1]: count * 9 // 10, SITUATIONS[2]: count // 10}.get(situation, 0)


def come_and_go(
    members: Members,
    endpoints: Sequence[Endpoint],
    away: deque[Endpoint],
    now: float,
    random: Random,
) -> None:
    """The one away for longest comes back, and another one goes."""
    members.set_draining(away.popleft(), draining=False, now=now)
    while members.is_draining(goes := random.choice(endpoints)):
        pass
    members.set_draining(goes, draining=True, now=now)
    away.append(goes)


class Load:
    """Sends what is chosen, and ends the oldest request beyond a limit."""

    def __init__(self, members: Members, limit: int) -> None:
        self.limit = limit
        self.now = 0.0
        self._members = members
        self._running: deque[Sent] = deque()

    def choose(self, key: RequestKey, tried: Sequence[Endpoint]) -> float:
        """Processor seconds of the choice alone."""
        self.now += INTERVAL
        begun = time.thread_time()
        chosen = self._members.choose(key, self.now, tried)
        seconds = time.thread_time() - begun
        assert chosen is not None
        self._running.append(self._members.begin(chosen, key.num_tokens, self.now))
        if len(self._running) > self.limit:
            self._end(self._running.popleft())
        return seconds

    def _end(self, sent: Sent) -> None:
        sent.first_byte(self.now)
        sent.end("success", self.now)


def prompts(random: Random) -> list[RequestKey]:
    shared = "You are helpful. " * (PROMPT_CHARACTERS // 2 // 17)
    own = PROMPT_CHARACTERS - len(shared)
    return [
        RequestKey(
            user=f"user-{number}",
            prompt=shared + random.randbytes(own // 2).hex(),
            num_tokens=PROMPT_TOKENS,
        )
        for number in range(NUM_KEYS)
    ]


if __name__ == "__main__":
    main()
