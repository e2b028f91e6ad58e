"""Which version people like better: `python examples/ab_test.py [URL]`.

Loads the next version of the served model with 4-bit weights and gives it half of the users. They
are simulated, and like its answers less often; the experiment finds out while they come.
"""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import httpx

from headrace.client import Client

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
LIKED = (0.95, 0.45)  # of the answers of the version that is there, and of the new one
MAX_USERS = 1000


def main() -> None:
    with Client(URL) as client:
        control = next(each.model_id for each in client.models.list() if each.active)
        variant = load(client, control.partition("@")[0])
        experiment = client.experiments.create(
            "smollm2", {control: 1, variant: 1}, "feedback", min_samples=50
        )
        print(f"{experiment.experiment_id}: {control} and {variant}")
        ask_until_decided(client, experiment.experiment_id, control)
        end = client.experiments.conclude(experiment.experiment_id)
        print(f"{end.promoted} is active")
        client.models.unload(variant)


def load(client: Client, name: str) -> str:
    """The next version, once it is ready."""
    model_id = client.models.load(name, name, engine={"precision": "w4a16"}).model_id
    while (model := client.models.get(model_id)).state != "ready":
        if model.state == "failed":
            raise SystemExit(f"{model_id}: {model.reason}")
        time.sleep(0.2)
    return model_id


def ask_until_decided(client: Client, experiment_id: str, control: str) -> None:
    """A look after every few users does no harm: the p-value holds at any time."""
    random = Random(7)
    with httpx.Client(base_url=URL, timeout=60) as http, ThreadPoolExecutor(4) as pool:
        for users in groups_of(20):
            for request_id, version in pool.map(lambda user: ask(http, user), users):
                is_liked = random.random() < LIKED[version != control]
                client.experiments.feedback(request_id, float(is_liked))
            state = client.experiments.get(experiment_id)
            show = [f"{each.model_id} {each.feedback.mean or 0:.2f}" for each in state.variants]
            comparison = state.variants[1].comparison
            p_value = comparison.p_value if comparison else None
            known = state.waiting_for if p_value is None else f"p {p_value:.3f}"
            print(f"{', '.join(show)}: {known}")
            if state.winner is not None:
                return
    raise SystemExit("no winner was found")


def groups_of(count: int) -> Iterator[list[str]]:
    for first in range(0, MAX_USERS, count):
        yield [f"user-{first + i}" for i in range(count)]


def ask(http: httpx.Client, user: str) -> tuple[str, str]:
    """Returns the request's id and the version that answered."""
    body = {"model": "smollm2", "prompt": "Water mills", "max_tokens": 4, "user_id": user}
    answer = http.post("/api/v1/generate", json=body).raise_for_status()
    return answer.headers["X-Request-ID"], answer.headers["X-Headrace-Version"]


if __name__ == "__main__":
    main()
