"""What a server begins with: its configuration's word, and what was done since. Pure.

The last word counts. A model that is declared as it was at the last start is as it was left; one
whose declaration changed is as it is declared now.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headrace.registry.spec import ModelSpec
from headrace.registry.storage.stored import StoredModel, StoredVersion, declaration_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the models are to be: `changed` ones are news to the store, `forgotten` ones go."""

    models: tuple[StoredModel, ...]
    changed: frozenset[str]
    forgotten: frozenset[str]


def reconcile(declared: Sequence[ModelSpec], stored: Iterable[StoredModel]) -> Plan:
    """Bring both words together, name by name."""
    kept = {model.name: model for model in stored}
    names = dict.fromkeys(spec.name for spec in declared)
    models: list[StoredModel] = []
    changed: set[str] = set()
    for name in names:
        specs = [spec for spec in declared if spec.name == name]
        before = kept.pop(name, None)
        if before is not None and before.declaration == declaration_digest(specs):
            models.append(_as_left(before))
        else:
            models.append(_as_declared(name, specs))
            changed.add(name)
    # A name that was declared and is no more has been taken out; others were only ever loaded.
    forgotten = {name for name, model in kept.items() if model.declaration}
    models += [_as_left(model) for name, model in kept.items() if name not in forgotten]
    return Plan(models=tuple(models), changed=frozenset(changed), forgotten=frozenset(forgotten))


def _as_declared(name: str, specs: Sequence[ModelSpec]) -> StoredModel:
    return StoredModel(
        name=name,
        declaration=declaration_digest(specs),
        active=max(spec.version for spec in specs),
        previous=None,
        versions=tuple(
            StoredVersion(spec=spec, state="loading", is_declared=True) for spec in specs
        ),
    )


def _as_left(model: StoredModel) -> StoredModel:
    """Its versions, with an active one among them as long as one is left that may be."""
    kept = tuple(version for version in model.versions if not _is_done_with(version, model.active))
    numbers = {version.spec.version for version in kept}
    active = model.active if model.active in numbers else None
    if active is None:
        active = max((v.spec.version for v in kept if v.state != "failed"), default=None)
    previous = model.previous if model.previous in numbers - {active} else None
    versions = tuple(_to_answer(v) if v.spec.version == active else v for v in kept)
    return replace(model, active=active, previous=previous, versions=versions)


def _is_done_with(version: StoredVersion, active: int | None) -> bool:
    """A replaced one that was not to be kept, and ended with the server."""
    is_replaced = version.state == "deprecated" and version.spec.version != active
    return is_replaced and version.spec.retain == "none"


def _to_answer(version: StoredVersion) -> StoredVersion:
    """One that was replaced is wanted again, when the one that replaced it is gone."""
    return replace(version, state="ready") if version.state == "deprecated" else version
