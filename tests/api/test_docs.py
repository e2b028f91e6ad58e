"""The pages of the API against the fields that it takes."""

import re
from pathlib import Path

import msgspec
import pytest

from headrace.api.errors import ForeignOriginError, PipelineError
from headrace.api.generate import GenerateRequest
from headrace.api.models.schema import LoadRequest, Model, ModelChange, SwapRequest
from headrace.api.openai.schema import ChatCompletionRequest, CompletionRequest
from headrace.api.tokenization import TokenizeRequest
from headrace.errors import HeadraceError, from_code
from headrace.registry.changes.safety import UnsafeSwapError
from headrace.routing.upstream import errors as of_upstreams

DOCS = Path(__file__).parents[2] / "docs/api"
OPENAI, HEADRACE, MODELS = (
    (DOCS / f"{name}.md").read_text() for name in ("openai", "headrace", "models")
)


@pytest.mark.parametrize(
    ("page", "struct"),
    [
        (OPENAI, ChatCompletionRequest),
        (OPENAI, CompletionRequest),
        (HEADRACE, GenerateRequest),
        (HEADRACE, TokenizeRequest),
        (MODELS, LoadRequest),
        (MODELS, SwapRequest),
        (MODELS, Model),
        (MODELS, ModelChange),
    ],
)
def test_every_field_stands_on_its_page(page: str, struct: type[msgspec.Struct]) -> None:
    missing = [name for name in struct.__struct_fields__ if f"`{name}`" not in page]
    assert not missing


def test_every_documented_parameter_exists() -> None:
    fields = {*ChatCompletionRequest.__struct_fields__, *CompletionRequest.__struct_fields__}
    tables = OPENAI.split("## Parameters of both routes")[1].split("## Answers")[0]
    assert set(re.findall(r"^\| `(\w+)`", tables, re.MULTILINE)) <= fields


def test_every_documented_code_of_our_own_exists() -> None:
    table = HEADRACE.split("## Errors")[1]
    codes = set(
        re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| \d.*?\|(.*?)\|", table, re.MULTILINE)))
    )
    unknown = {code for code in codes if type(from_code(code, "")) is HeadraceError}
    of_http = {"not_found", "method_not_allowed", "malformed_http", "head_too_large"}
    of_changes = {UnsafeSwapError.code, ForeignOriginError.code, PipelineError.code}
    upstreams = {
        kind.code
        for kind in vars(of_upstreams).values()
        if isinstance(kind, type) and kind.__module__ == of_upstreams.__name__
    }
    assert unknown == {"internal_error", *of_changes, *of_http, *upstreams}
