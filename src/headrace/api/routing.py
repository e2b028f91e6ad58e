"""Finds the route of a request: a look-up by path, and patterns for what is not found by it.

FastAPI declares and describes the routes; what it would do for each request, nothing of it needed
here, costs more than our own part. See docs/decisions.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from string import punctuation
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.api.errors import MethodError, NoRouteError
from headrace.api.exchange import exchange_of

Endpoint = Callable[..., Awaitable[ASGIApp]]

_NO_ARGUMENTS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class _Resource:
    """One path, or paths of one pattern, and what answers there by method."""

    path: str
    pattern: re.Pattern[str]
    endpoints: dict[str, Endpoint] = field(default_factory=dict)


class Routes:
    """Calls an endpoint with the request and what its path names, and sends what it returns."""

    def __init__(self, routers: Iterable[APIRouter]) -> None:
        self._by_path: dict[str, _Resource] = {}
        for router in routers:
            for route in router.routes:
                assert isinstance(route, APIRoute)
                self._add(route)
        self._patterns = [each for each in self._by_path.values() if each.pattern.groups]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        resource, arguments = self._find(scope["path"])
        if resource is None:
            answer: ASGIApp = self._elsewhere(scope)
        else:
            exchange_of(scope).route = resource.path
            endpoint = resource.endpoints.get(scope["method"])
            if endpoint is None:
                raise MethodError(scope["method"], scope["path"], allowed=resource.endpoints)
            answer = await endpoint(Request(scope, receive), **arguments)
        await answer(scope, receive, send)

    def _add(self, route: APIRoute) -> None:
        resource = self._by_path.setdefault(route.path, _Resource(route.path, route.path_regex))
        for method in route.methods or ():
            resource.endpoints[method] = route.endpoint

    def _find(self, path: str) -> tuple[_Resource | None, Mapping[str, str]]:
        resource = self._by_path.get(path)
        if resource is not None and not resource.pattern.groups:
            return resource, _NO_ARGUMENTS
        for each in self._patterns:
            if match := each.pattern.fullmatch(path):
                return each, match.groupdict()
        return None, _NO_ARGUMENTS

    def _elsewhere(self, scope: Scope) -> Response:
        """Lead a path with a slash too many to the one without."""
        path: str = scope["path"].rstrip("/") or "/"
        if self._find(path)[0] is None:
            raise NoRouteError(scope["method"], scope["path"])
        target = quote(path)
        if query := quote(scope["query_string"], safe=punctuation):  # as it came, fit for a header
            target = f"{target}?{query}"
        return Response(status_code=307, headers={"Location": target})
