"""Describes routes and their msgspec bodies in one OpenAPI document."""

from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Self

import msgspec
from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from headrace.api.errors import ErrorBody

Struct = type[msgspec.Struct]

_REF = "#/components/schemas/{name}"


def describe(
    summary: str,
    *,
    body: Struct | None = None,
    query: Mapping[str, str] = MappingProxyType({}),
    answer: Struct | None = None,
    status: int = 200,
    stream: bool = False,
) -> dict[str, Any]:
    """The arguments of a route's decorator that document it; `query` says what each key means."""
    content: dict[str, Any] = {}
    if answer is not None:
        content["application/json"] = {"schema": {"$ref": _Reference(answer)}}
    if stream:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    done = {"description": HTTPStatus(status).phrase, "content": content}
    extra: dict[str, Any] = {"responses": {str(status): done}}
    if query:
        extra["parameters"] = [
            {"name": name, "in": "query", "description": meaning, "schema": {"type": "string"}}
            for name, meaning in query.items()
        ]
    if body is not None:
        schema = {"application/json": {"schema": {"$ref": _Reference(body)}}}
        extra["requestBody"] = {"required": True, "content": schema}
    error = {"application/json": {"schema": {"$ref": _Reference(ErrorBody)}}}
    return {
        "summary": summary,
        "status_code": status,
        "openapi_extra": extra,
        "responses": {"default": {"description": "What went wrong", "content": error}},
        "response_model": None,
    }


def openapi_document(
    routers: Sequence[APIRouter], *, title: str, version: str, description: str
) -> dict[str, Any]:
    """The whole document of the routers' routes."""
    routes = [route for router in routers for route in router.routes]
    document = get_openapi(title=title, version=version, description=description, routes=routes)
    extras = [route.openapi_extra for route in routes if isinstance(route, APIRoute)]
    structs = {ErrorBody, *(reference.struct for reference in _references(extras))}
    _, schemas = msgspec.json.schema_components(structs, ref_template=_REF)
    document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
    return document


class _Reference(str):
    """A reference in the document that remembers what it refers to."""

    __slots__ = ("struct",)
    struct: Struct

    def __new__(cls, struct: Struct) -> Self:
        reference = super().__new__(cls, _REF.format(name=struct.__name__))
        reference.struct = struct
        return reference

    def __deepcopy__(self, _memo: object) -> Self:  # FastAPI copies descriptions
        return self


def _references(node: object) -> Iterator[_Reference]:
    if isinstance(node, _Reference):
        yield node
    elif isinstance(node, dict | list):
        for item in node.values() if isinstance(node, dict) else node:
            yield from _references(item)
