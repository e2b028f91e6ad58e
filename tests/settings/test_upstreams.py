"""`[models.routing]` and `[[models.upstreams]]`, alone and beside workers."""

from dataclasses import fields
from pathlib import Path

import pytest

from headrace.endpoints import RoutingConfig, UpstreamConfig
from headrace.errors import ConfigurationError, InvalidRequestError
from headrace.settings import (
    LimitsSection,
    RoutingSection,
    UpstreamSection,
    model_spec,
    requested_spec,
)
from settings.conftest import Load, refusal

GPT = "https://api.example.org/v1"
MODEL = "[[models]]\nname = 'x'\n"
UPSTREAM = MODEL + "[[models.upstreams]]\n"


def test_a_url_is_an_upstream_by_itself(load: Load) -> None:
    (spec,) = load(models=[{"name": "gpt", "source": GPT}]).models
    assert (spec.name, spec.source, spec.has_workers) == ("gpt", GPT, False)
    assert spec.upstreams == (UpstreamConfig(url=GPT),)
    assert spec.routing == RoutingConfig()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (GPT, "api.example.org"),
        ("https://API.example.org:443/v1", "api.example.org"),
        ("http://localhost:8001/v1", "localhost-8001"),
        ("http://10.0.0.7/v1/", "10.0.0.7"),
    ],
)
def test_the_name_of_a_url_is_its_host(load: Load, url: str, name: str) -> None:
    assert [spec.name for spec in load(models=[{"source": url}]).models] == [name]


def test_a_host_that_cannot_be_a_name_needs_one(load: Load) -> None:
    message = refusal(load, models=[{"source": "http://[::1]:8001/v1"}])
    assert message.endswith(
        "cannot be a model's name; give it one, as in chat=http://[::1]:8001/v1"
    )


def test_every_key_of_an_upstream_reaches_the_spec(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_KEY", "k")
    text = """
    [[models]]
    name = "chat"
    source = "smollm2"
    [models.routing]
    strategy = "weighted"
    migration = "tokens"
    probe_interval = 5
    [[models.upstreams]]
    url = "https://gpu:8443/v1"
    name = "gpu"
    weight = 8
    api_key_env = "GPU_KEY"
    model = "org/model"
    dialect = "vllm"
    connect_timeout = 1
    first_byte_timeout = 2
    idle_timeout = 3
    probe_timeout = 4
    max_connections = 5
    ca_file = "~/ca.pem"
    [[models.upstreams]]
    url = "http://other/v1"
    """
    (spec,) = load(text).models
    assert spec.has_workers
    assert spec.routing == RoutingConfig(
        strategy="weighted", migration="tokens", probe_interval=5.0
    )
    gpu, other = spec.upstreams
    assert other == UpstreamConfig(url="http://other/v1")
    assert gpu == UpstreamConfig(
        url="https://gpu:8443/v1",
        name="gpu",
        weight=8.0,
        api_key_env="GPU_KEY",
        model="org/model",
        dialect="vllm",
        connect_timeout=1.0,
        first_byte_timeout=2.0,
        idle_timeout=3.0,
        probe_timeout=4.0,
        max_connections=5,
        ca_file=Path("~/ca.pem").expanduser(),
    )


def test_there_is_a_key_for_all_that_can_be_set() -> None:
    for section, config in ((UpstreamSection, UpstreamConfig), (RoutingSection, RoutingConfig)):
        assert list(section.model_fields) == [field.name for field in fields(config)]


def test_defaults_are_those_of_the_values_below() -> None:
    assert UpstreamSection(url=GPT).config == UpstreamConfig(url=GPT)
    assert RoutingConfig(**RoutingSection().model_dump()) == RoutingConfig()


def test_a_source_may_be_left_out_where_there_are_upstreams(load: Load) -> None:
    text = f"{UPSTREAM}url = '{GPT}'\nname = 'a'\n[[models.upstreams]]\nurl = 'http://b/v1'\n"
    (spec,) = load(text).models
    assert not spec.has_workers
    assert [each.label for each in spec.upstreams] == ["a", "b:80"]


def test_a_url_may_have_other_upstreams_beside_it(load: Load) -> None:
    (spec,) = load(
        f"[[models]]\nsource = '{GPT}'\n[[models.upstreams]]\nurl = 'http://b/v1'"
    ).models
    assert [each.label for each in spec.upstreams] == ["api.example.org:443", "b:80"]


def test_the_environment_reaches_an_upstream(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MODELS__0__UPSTREAMS__1__URL", "http://b/v1")
    monkeypatch.setenv("HEADRACE_MODELS__0__UPSTREAMS__1__WEIGHT", "2.5")
    monkeypatch.setenv("HEADRACE_MODELS__0__ROUTING__STRATEGY", "round_robin")
    (spec,) = load(f"{UPSTREAM}url = '{GPT}'").models
    assert [(each.url, each.weight) for each in spec.upstreams] == [
        (GPT, 1.0),
        ("http://b/v1", 2.5),
    ]
    assert spec.routing.strategy == "round_robin"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (MODEL, "models.0.source: field required where there are no upstreams"),
        (
            f"[[models]]\n[[models.upstreams]]\nurl = '{GPT}'",
            "models.0.name: field required where there is no source",
        ),
        (f"{UPSTREAM}name = 'a'", "models.0.upstreams.0.url: field required"),
        (f"{UPSTREAM}url = 'ftp://h/v1'", "models.0.upstreams.0.url: must be http:// or"),
        (f"{UPSTREAM}url = 'https://'", "models.0.upstreams.0.url: "),
        (f"{UPSTREAM}url = '{GPT}?key=1'", "models.0.upstreams.0.url: must have no query"),
        (f"{UPSTREAM}url = '{GPT}'\nname = 'a b'", "models.0.upstreams.0.name: string should"),
        (
            f"{UPSTREAM}url = '{GPT}'\napi_key = 'k'",
            "models.0.upstreams.0.api_key: unknown key (did you mean api_key_env?)",
        ),
        (
            f"{UPSTREAM}url = '{GPT}'\ndialect = 'x'",
            "models.0.upstreams.0.dialect: should be 'openai', ",
        ),
        (f"{UPSTREAM}url = '{GPT}'\nweight = -1", "models.0.upstreams.0.weight: should be gr"),
        (f"{UPSTREAM}url = '{GPT}'\nweight = inf", "models.0.upstreams.0.weight: should be a f"),
        (
            f"{UPSTREAM}url = '{GPT}'\nidle_timeout = 0",
            "models.0.upstreams.0.idle_timeout: should be greater than 0, not 0",
        ),
        (
            f"{UPSTREAM}url = '{GPT}'\nidle_timeout = 1e9",
            "models.0.upstreams.0.idle_timeout: should be less than or equal to 86400",
        ),
        (
            f"{UPSTREAM}url = '{GPT}'\nweight = 1e300",
            "models.0.upstreams.0.weight: should be less than or equal to 10000",
        ),
        (
            f"{UPSTREAM}url = '{GPT}'\nca_file = 'ca.pem'",
            "models.0.upstreams.0.ca_file: should be an absolute path",
        ),
        (
            f"{UPSTREAM}url = '{GPT}'\nca_file = '~nobody-of-that-name/ca.pem'",
            "models.0.upstreams.0.ca_file: should begin with a home that is there",
        ),
        (
            f"{UPSTREAM}url = '{GPT}'\n[models.routing]\nstrategy = 'best'",
            "models.0.routing.strategy: should be 'round_robin', ",
        ),
        (
            f"{UPSTREAM}url = '{GPT}'\n[models.routing]\nprobe_interval = 0.001",
            "models.0.routing.probe_interval: should be greater than or equal to 0.1",
        ),
        (
            (
                f"{UPSTREAM}url = '{GPT}'\nweight = 0\n"
                "[[models.upstreams]]\nurl = 'http://b/v1'\nweight = 0"
            ),
            "models.0.upstreams: the weights sum to 0, so that no request could go anywhere",
        ),
        (
            f"{UPSTREAM}url = '{GPT}'\n[[models.upstreams]]\nurl = '{GPT}/'",
            "models.0.upstreams.1.name: another upstream of the model is api.example.org:443 too",
        ),
        (
            f"{MODEL}source = '{GPT}'\n[[models.upstreams]]\nurl = '{GPT}'",
            "models.0.upstreams.0.name: another upstream of the model is api.example.org:443 too",
        ),
        ("[server]\nupstream_roots = ['host/v1']", "server.upstream_roots.0: must be http"),
    ],
)
def test_what_is_wrong_with_an_upstream_is_one_line_with_its_key(
    load: Load, text: str, sentence: str
) -> None:
    assert refusal(load, text).startswith(sentence)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("replicas = 1", "replicas"),
        ("idle_unload_after = 5", "idle_unload_after"),
        ("[models.engine]", "engine"),
    ],
)
def test_what_is_for_workers_is_refused_where_there_are_none(
    load: Load, line: str, key: str
) -> None:
    sentence = f"models.0.{key}: does nothing where a model has upstreams only"
    assert refusal(load, f"{MODEL}source = '{GPT}'\n{line}") == sentence
    assert refusal(load, f"{MODEL}{line}\n[[models.upstreams]]\nurl = '{GPT}'") == sentence


def test_upstreams_of_no_weight_may_stand_beside_workers(load: Load) -> None:
    text = f"{MODEL}source = 'smollm2'\n[[models.upstreams]]\nurl = '{GPT}'\nweight = 0\n"
    assert load(text).models[0].upstreams[0].weight == 0.0


def test_golden_prompts_are_for_upstreams_too(load: Load) -> None:
    text = f"{MODEL}source = '{GPT}'\n[[models.golden]]\nprompt = 'a'\nexpected = 'b'\n"
    assert len(load(text).models[0].golden) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[[models]]\nsource = 'https://user:secret@h/v1'",
        f"{UPSTREAM}url = 'https://user:secret@h/v1'",
        f"{UPSTREAM}url = '{GPT}?key=secret'",
        f"{UPSTREAM}url = '{GPT}'\napi_key = 'secret'",
        f"{UPSTREAM}url = '{GPT}'\napi_key_env = 'sk-secret'",
        "[server]\nupstream_roots = ['https://user:secret@h/v1']",
    ],
)
def test_a_key_that_stands_where_none_should_is_not_shown(load: Load, text: str) -> None:
    assert "secret" not in refusal(load, text)


def test_engine_flags_are_for_the_models_that_run_here(load: Load) -> None:
    engine = {"max_num_seqs": 4}
    text = f"[[models]]\nsource = '{GPT}'\n[[models]]\nsource = 'smollm2'\n"
    for said in ({}, {"models": [{"source": GPT}, {"source": "smollm2"}]}):
        remote, local = load(text, engine=engine, **said).models
        assert (remote.has_workers, local.engine.max_num_seqs) == (False, 4)
    for said in ({}, {"models": [{"source": GPT}]}):
        message = refusal(load, f"[[models]]\nsource = '{GPT}'\n", engine=engine, **said)
        assert message == "an engine flag: does nothing where a model has upstreams only"


def test_a_url_is_no_model_to_load_offline() -> None:
    with pytest.raises(ConfigurationError, match="a URL is a server to ask"):
        model_spec(GPT, {})


def test_a_client_describes_upstreams_as_the_file_does(load: Load) -> None:
    text = f"{UPSTREAM}url = '{GPT}'\nweight = 2\n[models.routing]\nmigration = 'off'\n"
    spec = requested_spec(
        {
            "name": "x",
            "upstreams": [{"url": GPT, "weight": 2}],
            "routing": {"migration": "off"},
        },
        LimitsSection(),
    )
    assert (spec,) == load(text).models


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({}, "source"),
        ({"upstreams": [{"url": GPT}], "replicas": 2}, "replicas"),
        ({"upstreams": [{"url": GPT, "weight": 0}]}, "upstreams"),
        ({"upstreams": [{"url": GPT}, {"url": GPT}]}, "upstreams.1.name"),
        ({"upstreams": [{"url": "x"}]}, "upstreams.0.url"),
        ({"upstreams": [{"url": GPT, "weight": "2"}]}, "upstreams.0.weight"),
        ({"source": GPT, "engine": {}}, "engine"),
        ({"source": "https://a:b@h/v1"}, "source"),
        ({"source": GPT, "routing": {"beta": 1}}, "routing.beta"),
    ],
)
def test_what_a_client_says_wrong_of_upstreams_is_named_by_its_field(
    said: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        requested_spec({"name": "x", **said}, LimitsSection())
    assert error.value.param == field
