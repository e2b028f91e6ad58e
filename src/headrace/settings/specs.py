"""Builds what the registry is asked to serve, from the file's `[[models]]` or a client's words.

Both pass the same sections, so that no value is right in one place and wrong in the other.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from headrace.endpoints import RoutingConfig, UpstreamConfig
from headrace.engine.config import EngineConfig
from headrace.errors import ConfigurationError, InvalidRequestError
from headrace.executors.config import ExecutorConfig
from headrace.modelfiles.sources import default_name
from headrace.registry.spec import GoldenCase, ModelSpec, is_url
from headrace.settings.layers import Layer, dotted, origin, sentence, validate
from headrace.settings.models import MODEL_NAME, RESERVED_NAMES, EngineSection, ModelSection
from headrace.settings.sections import LimitsSection, Sections
from headrace.settings.upstreams import upstream_configs


def requested_spec(fields: Mapping[str, Any], limits: LimitsSection) -> ModelSpec:
    """The model that a client describes with the keys of a `[[models]]` table, `name` among them.

    InvalidRequestError names the dotted field. Whether clients may have the source is not asked.
    """
    try:
        # JSON and strict, as the file is read.
        model = ModelSection.model_validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        raise _field_error(error, fields) from None
    assert model.name is not None
    return _model_spec(model, limits)


def model_spec(source: str, engine: Mapping[str, Any]) -> ModelSpec:
    """One model without a server, its `[models.engine]` given; ConfigurationError names the key."""
    if is_url(source):
        raise ConfigurationError("source: a URL is a server to ask, and no model to load here")
    layer = Layer(
        {"models": [{"source": source, "engine": engine}]}, lambda location: str(location[-1])
    )
    (spec,) = model_specs(validate(layer.values, (layer,)), (layer,))
    return spec


def model_specs(sections: Sections, layers: Sequence[Layer]) -> tuple[ModelSpec, ...]:
    """Every `[[models]]` table; ConfigurationError when there is none, or one twice."""
    if not sections.models:
        raise ConfigurationError(
            "nothing to serve: name a source, as in `headrace serve smollm2`, or a [[models]] table"
        )
    specs = tuple(_model_spec(model, sections.limits) for model in sections.models)
    seen: set[tuple[str, int]] = set()
    for index, spec in enumerate(specs):
        if (spec.name, spec.version) in seen:
            raise ConfigurationError(
                f"{origin(('models', index, 'name'), layers)}: {spec.name}@{spec.version} is there"
                " twice; name one of them otherwise (NAME=SOURCE)"
            )
        seen.add((spec.name, spec.version))
    return specs


def _model_spec(model: ModelSection, limits: LimitsSection) -> ModelSpec:
    upstreams = upstream_configs(model.source, model.upstreams)
    source = model.source or upstreams[0].url
    return ModelSpec(
        name=model.name or _derived_name(source),
        source=source,
        version=model.version,
        engine=_engine_config(model.engine, limits),
        executor=_executor_config(model.engine),
        replicas=model.replicas,
        retain=model.retain,
        idle_unload_after=model.idle_unload_after,
        golden=tuple(GoldenCase(**case.model_dump()) for case in model.golden),
        routing=RoutingConfig(**model.routing.model_dump()),
        upstreams=upstreams,
    )


def _engine_config(engine: EngineSection, limits: LimitsSection) -> EngineConfig:
    return EngineConfig(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        prefix_caching=engine.prefix_caching,
        max_queued_requests=limits.max_queued_requests,
        max_queued_tokens=limits.max_queued_tokens,
    )


def _executor_config(engine: EngineSection) -> ExecutorConfig:
    return ExecutorConfig(
        executor=engine.executor,
        precision=engine.precision,
        kv_cache_precision=engine.kv_cache_precision,
        # A plain number: a worker is told this, and pydantic's types do not cross to it.
        kv_cache_memory=None if engine.kv_cache_memory is None else int(engine.kv_cache_memory),
        num_threads=engine.num_threads,
        max_model_len=engine.max_model_len,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
    )


def _derived_name(source: str) -> str:
    name = _name_of_host(source) if is_url(source) else default_name(source)
    if re.fullmatch(MODEL_NAME, name) is None or name in RESERVED_NAMES:
        raise ConfigurationError(
            f"{source}: {name!r} cannot be a model's name; give it one, as in chat={source}"
        )
    return name


def _name_of_host(url: str) -> str:
    """Such as api.example.org, or localhost-8001 where there may be one a port."""
    base = UpstreamConfig(url=url).base
    port = "" if base.is_default_port() else f"-{base.port}"
    return f"{base.host}{port}"


def _field_error(error: ValidationError, fields: Mapping[str, Any]) -> InvalidRequestError:
    first = error.errors()[0]
    if first["type"] == "json_invalid":  # we have written it ourselves: it is JSON, and too deep
        field = next(name for name in fields if _is_too_deep({name: fields[name]}))
        return InvalidRequestError(f"{field}: nested too deeply.", param=field)
    field = dotted(first["loc"])
    return InvalidRequestError(
        f"{field}: {sentence(first, ('models', *first['loc']))}.", param=field
    )


def _is_too_deep(fields: Mapping[str, Any]) -> bool:
    try:
        from_json(json.dumps(fields))
    except ValueError:
        return True
    return False
