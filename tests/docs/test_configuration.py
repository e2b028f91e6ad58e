"""docs/configuration.md against the settings that it describes."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.settings import (
    NOT_SUPPORTED_YET,
    EngineSection,
    GoldenSection,
    LimitsSection,
    ModelSection,
    RoutingSection,
    ServerSection,
    StorageSection,
    TelemetrySection,
    UpstreamSection,
    load_settings,
)

PAGE = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
SECTIONS = {
    "server": ServerSection,
    "storage": StorageSection,
    "limits": LimitsSection,
    "telemetry": TelemetrySection,
    "models": ModelSection,
    "models.engine": EngineSection,
    "models.golden": GoldenSection,
    "models.routing": RoutingSection,
    "models.upstreams": UpstreamSection,
}
LISTED = {"models", "models.golden", "models.upstreams"}
STATE_DIR = "~/.local/state/headrace"


def rows(section: type[BaseModel]) -> list[str]:
    return [
        f"| `{name}` | {default(name, field)} | {field.description} |"
        for name, field in section.model_fields.items()
        if not isinstance(field.default, BaseModel)
    ]


def default(name: str, field: FieldInfo) -> str:
    if name == "state_dir":
        return f"`{STATE_DIR}`"
    if field.is_required():
        return "required"
    if field.default == ():
        return "none"
    return {None: "unset", True: "`true`", False: "`false`"}.get(
        field.default if field.default is None or isinstance(field.default, bool) else "",
        f"`{plain(field.default)}`",
    )


def plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("name", SECTIONS)
def test_every_key_stands_on_the_page_as_it_is(name: str) -> None:
    heading = f"## `[[{name}]]`\n" if name in LISTED else f"## `[{name}]`\n"
    part = PAGE.split(heading)[1]
    table = re.findall(r"^\| `.*$", part.split("\n## ")[0], re.MULTILINE)
    assert table == rows(SECTIONS[name])


def test_every_key_for_later_is_named_as_such() -> None:
    later = PAGE.split("## Not supported yet")[1]
    for key in NOT_SUPPORTED_YET:
        assert f"`{key.replace('=', ' = ')}`" in later, key


def test_the_example_file_is_accepted(tmp_path: Path) -> None:
    for number, text in enumerate(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)):
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        assert load_settings(path, {}).models
