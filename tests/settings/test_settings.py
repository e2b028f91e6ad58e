from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from headrace.engine.config import EngineConfig
from headrace.errors import ConfigurationError, InvalidRequestError
from headrace.executors.config import ExecutorConfig
from headrace.registry.spec import GoldenCase, ModelSpec
from headrace.settings import (
    NOT_SUPPORTED_YET,
    EngineSection,
    GoldenSection,
    LimitsSection,
    ModelSection,
    default_state_dir,
    is_loopback,
    load_settings,
    requested_spec,
)
from settings.conftest import Load

ONE_MODEL = {"models": [{"source": "smollm2"}]}


def refusal(load: Load, text: str = "", **overrides: object) -> str:
    with pytest.raises(ConfigurationError) as error:
        load(text, **overrides)
    assert "\n" not in error.value.message
    return error.value.message


def test_a_source_alone_is_enough() -> None:
    settings = load_settings(None, ONE_MODEL)
    (model,) = settings.models
    assert (model.name, model.source, model.version) == ("smollm2", "smollm2", 1)
    assert model.engine == EngineConfig()
    assert model.executor == ExecutorConfig()
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8000)
    assert settings.server.state_dir == default_state_dir()


def test_the_state_folder_follows_the_xdg_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert default_state_dir() == Path("/somewhere/headrace")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_state_dir() == Path("~/.local/state/headrace").expanduser()


def test_flags_win_over_the_environment_and_that_over_the_file(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[server]\nport = 1\nshutdown_timeout = 1.5\nmax_body_bytes = 100\n"
    monkeypatch.setenv("HEADRACE_SERVER__PORT", "2")
    monkeypatch.setenv("HEADRACE_SERVER__SHUTDOWN_TIMEOUT", "2.5")
    server = load(text, server={"port": 3}, **ONE_MODEL).server
    assert (server.port, server.shutdown_timeout, server.max_body_bytes) == (3, 2.5, 100)


def test_every_model_of_the_file_takes_the_engine_flags(load: Load) -> None:
    text = """
    [[models]]
    source = "smollm2"
    [models.engine]
    max_num_seqs = 4
    precision = "int8"
    [[models]]
    source = "other.gguf"
    """
    models = load(text, engine={"max_num_seqs": 2}).models
    assert [model.engine.max_num_seqs for model in models] == [2, 2]
    assert [model.executor.max_num_seqs for model in models] == [2, 2]
    assert [model.executor.precision for model in models] == ["int8", "auto"]


def test_models_of_the_command_line_replace_those_of_the_file(load: Load) -> None:
    text = '[[models]]\nsource = "a.gguf"\n[[models]]\nsource = "b.gguf"\n'
    models = load(text, models=[{"name": "chat", "source": "smollm2"}]).models
    assert [(model.name, model.source) for model in models] == [("chat", "smollm2")]


def test_the_environment_reaches_into_a_model(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MODELS__0__ENGINE__KV_CACHE_MEMORY", "512MiB")
    monkeypatch.setenv("HEADRACE_MODELS__1__SOURCE", "second.gguf")
    models = load('[[models]]\nname = "chat"\nsource = "smollm2"\n').models
    assert [model.name for model in models] == ["chat", "second"]
    assert models[0].executor.kv_cache_memory == 512 * 2**20
    assert type(models[0].executor.kv_cache_memory) is int  # what a frame to a worker can hold


def test_the_environment_names_models_as_json(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MODELS", '[{"name": "chat", "source": "smollm2"}]')
    assert [model.name for model in load().models] == ["chat"]
    monkeypatch.setenv("HEADRACE_MODELS", "smollm2")
    assert refusal(load) == "HEADRACE_MODELS: should be JSON"


def test_limits_reach_every_engine(load: Load) -> None:
    settings = load("[limits]\nmax_queued_requests = 7\nmax_queued_tokens = 70\n", **ONE_MODEL)
    engine = settings.models[0].engine
    assert (engine.max_queued_requests, engine.max_queued_tokens) == (7, 70)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[server]\nprot = 1", "server.prot: unknown key (did you mean port?)"),
        ("[servr]\nport = 1", "servr: unknown key (did you mean server?)"),
        ("[server]\nport = 70000", "server.port: should be less than or equal to 65535, not 70000"),
        ("[server]\nport = '80'", "server.port: should be a valid integer, not '80'"),
        ("[server]\nport = true", "server.port: should be a valid integer, not True"),
        ("[server]\nrequest_timeout = nan", "server.request_timeout: should be a finite number"),
        ("[server]\ntls_certfile = 'x'", "server.tls_certfile: not supported yet"),
        ("[auth]\nadmin_scope = 'x'", "auth: not supported yet"),
        ("[telemetry]\nlog_format = 'xml'", "telemetry.log_format: should be 'text' or 'json'"),
        ("[[models]]\nname = 'x'", "models.0.source: field required"),
        ("[[models]]\nsource = 'x'\ntags = 'a'", "models.0.tags: not supported yet"),
        ("[storage]\nredis_url = 'x'", "storage.redis_url: not supported yet"),
        ("[server]\nmax_loaded_models = 0", "server.max_loaded_models: should be greater than"),
        (
            "[server]\nmodel_roots = ['models']",
            "server.model_roots.0: should be an absolute path, not 'models'",
        ),
        ("[[models]]\nsource = 'x'\nreplicas = 65", "models.0.replicas: should be less than"),
        (
            "[[models]]\nsource = 'x'\nretain = 'hot'",
            "models.0.retain: should be 'warm', 'cold' or 'none', not 'hot'",
        ),
        (
            "[[models]]\nsource = 'x'\nidle_unload_after = 0",
            "models.0.idle_unload_after: should be greater than 0, not 0",
        ),
        ("[[models]]\nsource = 'x'\nversion = 2147483648", "models.0.version: should be less"),
        (
            "[[models]]\nsource = 'x'\n[[models.golden]]\nprompt = 'a'",
            "models.0.golden.0.expected: field required",
        ),
        (
            "[[models]]\nsource = 'x'\n[[models.golden]]\npromt = 'a'\nexpected = 'b'",
            "models.0.golden.0.prompt: field required",
        ),
        ("[[models]]\nsource = 'x'\nname = 'a@2'", "models.0.name: string should match"),
        ("[[models]]\nsource = 'x'\nname = 'events'", "models.0.name: should be none of the API's"),
        (
            "[[models]]\nsource = 'x'\n[models.engine]\nnum_threads = 1025",
            "models.0.engine.num_threads: should be less than or equal to 1024, not 1025",
        ),
        (
            "[[models]]\nsource = 'x'\n[models.engine]\nexecutor = 'torch'",
            "models.0.engine.executor: not supported yet",
        ),
        (
            "[[models]]\nsource = 'x'\n[models.engine]\nmax_num_seq = 1",
            "models.0.engine.max_num_seq: unknown key (did you mean max_num_seqs?)",
        ),
        (
            "[[models]]\nsource = 'x'\n[models.engine]\nkv_cache_memory = 'much'",
            "models.0.engine.kv_cache_memory: could not parse value and unit",
        ),
        ("[models]\nsource = 'x'", "models: should be a valid array"),
        ("[server", "not valid TOML"),
    ],
)
def test_a_bad_key_is_one_line_with_the_file_and_the_key(
    load: Load, tmp_path: Path, text: str, sentence: str
) -> None:
    message = refusal(load, text)
    assert message.startswith(f"{tmp_path / 'headrace.toml'}: {sentence}")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent\.toml: no such file"):
        load_settings(tmp_path / "absent.toml", ONE_MODEL)


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("HEADRACE_SERVER__PORT", "many", "should be a valid integer"),
        ("HEADRACE_SERVER__PROT", "1", "unknown key (did you mean port?)"),
        ("HEADRACE_MODELS__0__ENGINE__MAX_NUM_SEQS", "0", "should be greater than or equal to 1"),
        ("HEADRACE_LIMITS__TOKENS_PER_MINUTE", "5", "not supported yet"),
    ],
)
def test_a_bad_variable_is_named(
    load: Load, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert refusal(load, "[[models]]\nsource = 'x'").startswith(f"{variable}: {sentence}")


def test_an_unknown_section_in_the_environment_is_named(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SERVR__PORT", "1")
    assert refusal(load, **ONE_MODEL).startswith("HEADRACE_SERVR: unknown key")


def test_a_variable_without_a_section_is_not_ours(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TEST_CACHE", "/somewhere")
    monkeypatch.setenv("HEADRACE_ISA", "avx2")  # the native kernels read it
    assert load(**ONE_MODEL).models


def test_a_bad_flag_is_named(load: Load) -> None:
    assert refusal(load, server={"port": -1}, **ONE_MODEL).startswith("--port: ")
    message = refusal(load, engine={"kv_cache_memory": "lots"}, **ONE_MODEL)
    assert message.startswith("--kv-cache-memory: ")
    message = refusal(load, '[[models]]\nsource = "x"', engine={"max_num_seqs": 0})
    assert message.startswith("--max-num-seqs: ")
    assert refusal(load, models=[{"source": ""}]).startswith("SOURCE: ")


def test_nothing_to_serve_is_refused(load: Load) -> None:
    assert refusal(load).startswith("nothing to serve")


def test_the_same_name_and_version_twice_is_refused(load: Load) -> None:
    models = [{"name": "chat", "source": "a.gguf"}, {"name": "chat", "source": "b.gguf"}]
    assert "chat@1 is there twice" in refusal(load, models=models)
    assert len(load(models=[models[0], {**models[1], "version": 2}]).models) == 2


def test_a_source_whose_name_cannot_be_one_needs_a_name(load: Load) -> None:
    message = refusal(load, models=[{"source": "my model@2.gguf"}])
    assert "as in chat=my model@2.gguf" in message
    assert "as in chat=history.gguf" in refusal(load, models=[{"source": "history.gguf"}])


def test_a_host_that_others_reach_needs_a_permission(load: Load) -> None:
    text = '[server]\nhost = "0.0.0.0"\n'
    assert "server.host: 0.0.0.0 can be reached" in refusal(load, text, **ONE_MODEL)
    message = refusal(load, server={"host": "192.168.1.5"}, **ONE_MODEL)
    assert message.startswith("--host: ")
    permitted = load(text, server={"allow_unauthenticated": True}, **ONE_MODEL)
    assert permitted.server.host == "0.0.0.0"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
    ],
)
def test_loopback_is_told_from_the_rest(host: str, *, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_defaults_are_those_of_the_values_below() -> None:
    pairs: list[tuple[BaseModel, object]] = [
        (EngineSection(), EngineConfig()),
        (EngineSection(), ExecutorConfig()),
        (ModelSection(source="x"), ModelSpec(name="x", source="x")),
        (GoldenSection(prompt="a", expected="b"), GoldenCase(prompt="a", expected="b")),
    ]
    for section, below in pairs:
        fields = set(type(section).model_fields) & set(type(below).__dataclass_fields__)
        for field in fields - {"engine", "name", "routing"}:
            assert getattr(section, field) == getattr(below, field), field


def test_a_key_for_later_is_not_a_key_of_today(load: Load) -> None:
    for key in sorted(NOT_SUPPORTED_YET):
        *sections, name = key.partition("=")[0].split(".")
        value = key.partition("=")[2] or "x"
        tables = {"models": "[[models]]\nsource = 'x'\n"}.get(sections[0] if sections else "", "")
        if sections and (sections != ["models"]):
            tables += f"[{'.'.join(sections)}]\n"
        assert refusal(load, f"{tables}{name} = '{value}'\n").endswith("not supported yet"), key


def test_what_a_model_is_to_do_over_its_life_reaches_its_spec(load: Load) -> None:
    text = """
    [[models]]
    source = "smollm2"
    version = 3
    replicas = 2
    retain = "cold"
    idle_unload_after = 90
    [[models.golden]]
    prompt = "2 + 2 ="
    expected = "4"
    [[models.golden]]
    prompt = "The capital of France is"
    expected = "Paris"
    max_tokens = 8
    """
    (spec,) = load(text).models
    assert (spec.model_id, spec.replicas, spec.retain) == ("smollm2@3", 2, "cold")
    assert spec.idle_unload_after == 90.0
    assert spec.golden == (
        GoldenCase(prompt="2 + 2 =", expected="4"),
        GoldenCase(prompt="The capital of France is", expected="Paris", max_tokens=8),
    )


def test_the_server_is_told_what_clients_may_do(load: Load) -> None:
    text = '[server]\nmax_loaded_models = 3\nmodel_roots = ["/models", "~/models"]\n'
    server = load(text, **ONE_MODEL).server
    assert server.max_loaded_models == 3
    assert server.model_roots == (Path("/models"), Path("~/models").expanduser())
    server = load(**ONE_MODEL).server
    assert (server.max_loaded_models, server.model_roots) == (None, ())


def test_the_environment_sets_lists(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SERVER__MODEL_ROOTS", '["/models"]')
    monkeypatch.setenv("HEADRACE_MODELS__0__SOURCE", "smollm2")
    monkeypatch.setenv("HEADRACE_MODELS__0__GOLDEN__0__PROMPT", "2 + 2 =")
    monkeypatch.setenv("HEADRACE_MODELS__0__GOLDEN__0__EXPECTED", "4")
    settings = load()
    assert settings.server.model_roots == (Path("/models"),)
    assert settings.models[0].golden == (GoldenCase(prompt="2 + 2 =", expected="4"),)


@pytest.mark.parametrize(
    "url", ["sqlite:////var/lib/headrace.db", "postgresql://db/h", "postgresql+psycopg://u:p@db/h"]
)
def test_a_database_is_named_by_its_url(load: Load, url: str) -> None:
    storage = load(f"[storage]\ndatabase_url = '{url}'\n", **ONE_MODEL).storage
    assert storage.database_url == url
    assert url not in repr(storage)
    assert load(**ONE_MODEL).storage.database_url is None


def test_a_wrong_database_url_is_refused_without_being_shown(load: Load) -> None:
    message = refusal(load, "[storage]\ndatabase_url = ['postgresql://u:secret@db']", **ONE_MODEL)
    assert "storage.database_url: should be a valid string" in message
    assert "secret" not in message


API_WORDS = "events, history, load, rollback, swap"


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def requested(**fields: Any) -> ModelSpec:
    fields = {"name": "chat", "source": "smollm2", **fields}
    return requested_spec(fields, LimitsSection(max_queued_requests=7))


def test_a_client_describes_a_model_as_the_file_does(load: Load) -> None:
    text = """
    [limits]
    max_queued_requests = 7
    [[models]]
    name = "chat"
    source = "smollm2"
    version = 2
    replicas = 2
    retain = "none"
    idle_unload_after = 5
    [models.engine]
    max_num_seqs = 4
    kv_cache_memory = "64MiB"
    executor = "openvino"
    [[models.golden]]
    prompt = "a"
    expected = "b"
    """
    spec = requested(
        version=2,
        replicas=2,
        retain="none",
        idle_unload_after=5,
        engine={"max_num_seqs": 4, "kv_cache_memory": "64MiB", "executor": "openvino"},
        golden=[{"prompt": "a", "expected": "b"}],
    )
    assert (spec,) == load(text).models


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"version": 0}, "version", "should be greater than or equal to 1, not 0"),
        ({"version": "2"}, "version", "should be a valid integer, not '2'"),
        ({"name": "a/b"}, "name", "string should match pattern"),
        ({"name": "a" * 129}, "name", "string should match pattern"),
        ({"name": "chat@2"}, "name", "string should match pattern"),
        ({"source": ""}, "source", "string should have at least 1 character"),
        ({"replicas": True}, "replicas", "should be a valid integer, not True"),
        ({"runtime": "onnx"}, "runtime", "not supported yet"),
        ({"engine": []}, "engine", "should be an object"),
        ({"engine": {"max_num_seqs": 0}}, "engine.max_num_seqs", "should be greater than"),
        ({"engine": {"max_num_seqs": 1 << 64}}, "engine.max_num_seqs", "should be less than"),
        ({"engine": {"executor": "torch"}}, "engine.executor", "not supported yet"),
        (
            {"engine": {"max_num_seq": 1}},
            "engine.max_num_seq",
            "unknown key (did you mean max_num_seqs?)",
        ),
        ({"golden": [{"prompt": "a"}]}, "golden.0.expected", "field required"),
        *(
            ({"name": name}, "name", f"should be none of the API's own words ({API_WORDS})")
            for name in API_WORDS.split(", ")
        ),
        ({"engine": {"a": nested(500)}}, "engine", "nested too deeply."),
        ({"engine": {}, "golden": [{"prompt": nested(500)}]}, "golden", "nested too deeply."),
    ],
)
def test_what_a_client_says_wrong_is_named_by_its_field(
    fields: dict[str, object], field: str, sentence: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        requested(**fields)
    assert error.value.param == field
    assert error.value.message.startswith(f"{field}: {sentence}")
