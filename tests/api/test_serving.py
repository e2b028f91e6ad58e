import httpx
import pytest

from api.scripted import ScriptedModel, ScriptedRegistry, info

BODY = {"model": "chat", "prompt": "x"}


@pytest.fixture(autouse=True)
def two_versions(registry: ScriptedRegistry) -> None:
    registry.models = [ScriptedModel(info("chat@2")), ScriptedModel(info("chat@1"))]


@pytest.mark.parametrize(
    ("model", "pin", "version"),
    [
        ("chat", None, "chat@2"),
        ("chat@1", None, "chat@1"),
        ("chat", "1", "chat@1"),
        ("chat", "chat@1", "chat@1"),
        ("chat@1", "1", "chat@1"),
    ],
)
async def test_a_request_may_pin_a_version(
    http: httpx.AsyncClient, model: str, pin: str | None, version: str
) -> None:
    headers = {"X-Headrace-Version": pin} if pin else {}
    answer = await http.post("/v1/completions", json={**BODY, "model": model}, headers=headers)
    assert (answer.status_code, answer.headers["x-headrace-version"]) == (200, version)


@pytest.mark.parametrize(("model", "pin"), [("chat", "9"), ("chat", "other@1"), ("chat@1", "2")])
async def test_a_pin_that_is_not_served_is_a_404(
    http: httpx.AsyncClient, model: str, pin: str
) -> None:
    headers = {"X-Headrace-Version": pin}
    answer = await http.post("/v1/completions", json={**BODY, "model": model}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon", ""])
async def test_a_timeout_that_is_no_time_is_refused(http: httpx.AsyncClient, seconds: str) -> None:
    answer = await http.post("/v1/completions", json=BODY, headers={"X-Request-Timeout": seconds})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Request-Timeout")


async def test_a_caller_may_shorten_the_servers_timeout_but_not_extend_it(
    http: httpx.AsyncClient, registry: ScriptedRegistry
) -> None:
    for timeout in ("5", "1e9"):
        await http.post("/v1/completions", json=BODY, headers={"X-Request-Timeout": timeout})
    await http.post("/v1/completions", json=BODY)
    short, long, default = (request.deadline for request in registry.models[0].requests)
    assert long - short == pytest.approx(600 - 5, abs=2)
    assert default - long == pytest.approx(0, abs=2)
