"""The API's description, and the page that shows it."""

from collections.abc import Sequence

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.body import json_response
from headrace.api.openapi import openapi_document

TITLE = "Headrace"
DESCRIPTION = "One server for any model: OpenAI's API and our own."
_DOCUMENT_PATH = "/openapi.json"


class DocsRoutes:
    """`/docs` and `/openapi.json` of the routers' routes."""

    def __init__(self, routers: Sequence[APIRouter], *, version: str) -> None:
        self._routers = routers
        self._version = version
        self._document: Response | None = None
        self._page = get_swagger_ui_html(openapi_url=_DOCUMENT_PATH, title=TITLE)

    def router(self) -> APIRouter:
        router = APIRouter(include_in_schema=False)
        router.get(_DOCUMENT_PATH, response_model=None)(self.document)
        router.get("/docs", response_model=None)(self.page)
        return router

    async def document(self, _request: Request) -> Response:
        if self._document is None:  # not at the start, which waits for it
            self._document = json_response(
                openapi_document(
                    self._routers, title=TITLE, version=self._version, description=DESCRIPTION
                )
            )
        return self._document

    async def page(self, _request: Request) -> Response:
        return self._page
