"""What a spec is as JSON: all of it that was chosen, and nothing that was derived."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.endpoints import MAX_WEIGHT, MIN_WEIGHT, RoutingConfig, UpstreamConfig
from headrace.registry.spec import ModelSpec
from headrace.registry.storage.stored import declaration_digest, spec_from_json, spec_to_json

LOCAL = ModelSpec(name="chat", source="smollm2")

seconds = st.floats(0.001, 1e9)
upstreams = st.builds(
    UpstreamConfig,
    url=st.sampled_from(["http://a/v1", "https://b:8443/team/v1/"]),
    name=st.sampled_from(["", "gpu"]),
    weight=st.just(0.0) | st.floats(MIN_WEIGHT, MAX_WEIGHT),
    api_key_env=st.none() | st.just("KEY"),
    model=st.none() | st.just("org/model"),
    dialect=st.none() | st.sampled_from(["openai", "vllm"]),
    connect_timeout=seconds,
    idle_timeout=seconds,
    max_connections=st.integers(1, 9999),
    ca_file=st.none() | st.just(Path("/a/b.pem")),
)
specs = st.builds(
    ModelSpec,
    name=st.just("chat"),
    source=st.sampled_from(["smollm2", "http://a/v1"]),
    routing=st.builds(
        RoutingConfig,
        strategy=st.sampled_from(["weighted", "least_load"]),
        migration=st.sampled_from(["tokens", "off"]),
        probe_interval=seconds,
    ),
    upstreams=st.lists(upstreams, max_size=3).map(tuple),
)


@given(specs)
def test_upstreams_outlive_being_json_whatever_was_asked_of_them(spec: ModelSpec) -> None:
    for each in spec.upstreams:
        assert each.base
        assert each.root
        assert each.label
    read = spec_from_json(spec_to_json(spec))
    assert read == spec
    assert [each.label for each in read.upstreams] == [each.label for each in spec.upstreams]


@given(specs)
def test_what_is_derived_is_not_stored(spec: ModelSpec) -> None:
    labels = {each.label for each in spec.upstreams}
    stored = json.loads(spec_to_json(spec))["upstreams"]
    assert all(set(each) == set(UpstreamConfig.__dataclass_fields__) for each in stored)
    assert len(labels) <= len(stored)


def test_a_row_of_before_there_were_upstreams_is_read() -> None:
    fields = json.loads(spec_to_json(LOCAL))
    del fields["routing"], fields["upstreams"]
    assert spec_from_json(json.dumps(fields)) == LOCAL


def test_an_upstream_that_is_none_any_more_is_what_this_release_cannot_read() -> None:
    fields = json.loads(spec_to_json(LOCAL))
    fields["upstreams"] = [{"url": "ftp://h/v1"}]
    with pytest.raises(msgspec.DecodeError, match="must be http"):
        spec_from_json(json.dumps(fields))


@given(specs)
def test_a_digest_tells_upstreams_apart(spec: ModelSpec) -> None:
    read = spec_from_json(spec_to_json(spec))
    assert declaration_digest([read]) == declaration_digest([spec])
    is_as_before = (spec.routing, spec.upstreams, spec.source) == (RoutingConfig(), (), "smollm2")
    assert (declaration_digest([spec]) == declaration_digest([LOCAL])) == is_as_before
