import httpx

from api.experiments.conftest import PATH, created, serve
from headrace.registry.registry import Registry
from headrace.routing.experiments.experiments import Experiments


async def test_an_experiment_is_begun_read_and_concluded(
    http: httpx.AsyncClient, experiments: Experiments, registry: Registry
) -> None:
    experiment_id = await created(http)
    serve(experiments, 400)
    state = (await http.get(f"{PATH}/{experiment_id}")).json()
    assert (state["state"], state["winner"], state["promoted"]) == ("running", "m0@2", None)
    control, variant = state["variants"]
    assert control["comparison"] is None
    assert variant["comparison"]["p_value"] < 0.05
    assert variant["comparison"]["fixed_p_value"] < 0.05
    assert 0 < variant["comparison"]["low"] < variant["comparison"]["high"]
    assert (variant["success"]["mean"], variant["latency"]["mean"]) == (1.0, 0.5)
    assert registry.status("m0").model_id == "m0@1"
    concluded = (await http.post(f"{PATH}/{experiment_id}/conclude")).json()
    assert (concluded["state"], concluded["promoted"]) == ("concluded", "m0@2")
    assert concluded["concluded_by"].startswith("http 127.0.0.1")
    assert registry.status("m0").model_id == "m0@2"
    assert (await http.get(PATH)).json() == {"experiments": [concluded]}


async def test_a_person_may_choose_another_than_the_winner(
    http: httpx.AsyncClient, experiments: Experiments, registry: Registry
) -> None:
    experiment_id = await created(http)
    serve(experiments, 400)
    answer = await http.post(f"{PATH}/{experiment_id}/conclude", json={"winner": "m0@1"})
    assert (answer.status_code, answer.json()["promoted"]) == (200, "m0@1")
    assert registry.status("m0").model_id == "m0@1"


async def test_a_version_that_may_not_be_active_leaves_the_experiment_running(
    http: httpx.AsyncClient, experiments: Experiments, registry: Registry
) -> None:
    experiment_id = await created(http)
    await registry.unload("m0@2", who="test")
    answer = await http.post(f"{PATH}/{experiment_id}/conclude", json={"winner": "m0@2"})
    assert answer.status_code in (400, 404), answer.text
    assert (await http.get(f"{PATH}/{experiment_id}")).json()["state"] == "running"
    assert {experiments.choose("m0", f"{i}") for i in range(50)} == {"m0@1", None}


async def test_a_swap_by_hand_is_followed_at_once(
    http: httpx.AsyncClient, experiments: Experiments, registry: Registry
) -> None:
    await created(http)
    await registry.swap("m0@2", who="test")
    assert {experiments.choose("m0", f"{i}") for i in range(50)} == {None}
