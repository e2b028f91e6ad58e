"""An OpenAI-compatible server as a LanguageModel. Knows nothing of other endpoints.

Answers are always streamed, and their usage is always asked for. Nothing is tried again once any
of an answer has come: that is for whoever chose this upstream.
"""

import re
import time
from collections.abc import Mapping
from functools import partial
from math import inf
from typing import Literal, Self

from headrace.endpoints import UpstreamConfig
from headrace.errors import HeadraceError
from headrace.generation import GenerationRequest, ModelInfo, Prompt
from headrace.routing.upstream.answer import AnswerReader
from headrace.routing.upstream.body import Body
from headrace.routing.upstream.connection import Connection
from headrace.routing.upstream.continuing import can_go_on
from headrace.routing.upstream.dialect import Dialect
from headrace.routing.upstream.errors import UpstreamBrokenError, UpstreamRefusedError
from headrace.routing.upstream.generation import UpstreamGeneration
from headrace.routing.upstream.identity import Identity
from headrace.routing.upstream.models import ModelCard
from headrace.routing.upstream.refusals import Refusals, read_refusal
from headrace.routing.upstream.relay import UpstreamRelay
from headrace.routing.upstream.rendering import CHAT_PATH, COMPLETION_PATH, render
from headrace.routing.upstream.times import InTime, Times
from headrace.routing.upstream.tokenization import read_text, read_tokens, text_body, tokens_body
from headrace.routing.upstream.tracing import trace_headers

MAX_WHOLE_TIME = 600.0  # seconds for the first byte of a whole answer without a deadline
_EVENT_STREAM = "text/event-stream"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_NO_CONTEXT: Mapping[str, str] = {}


class Upstream:
    """One server. Made inside an event loop, with the key itself, and closed there."""

    def __init__(self, config: UpstreamConfig, api_key: str | None = None) -> None:
        self.config = config
        self._urls = {path: config.base.joinpath(path) for path in (CHAT_PATH, COMPLETION_PATH)}
        self.refusals = Refusals(config.label, api_key)
        self._connection = Connection(config, api_key, self.refusals)
        self._identity = Identity(config, self._connection, self.refusals)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection, those of running requests too."""
        await self._connection.close()

    @property
    def info(self) -> ModelInfo:
        """What was last learned; see `headrace.routing.upstream.models` for what nobody tells."""
        return self._identity.info

    def generate(self, request: GenerationRequest) -> UpstreamGeneration:
        """Chunks as they come; closing it closes the connection, and so aborts the request."""
        return UpstreamGeneration(partial(self._begin, request), self.refusals)

    async def relay(
        self,
        path: str,
        data: bytes,
        *,
        is_stream: bool,
        deadline: float | None = None,
        request_id: str = "",
        trace: Mapping[str, str] = _NO_CONTEXT,
    ) -> UpstreamRelay:
        """Send a body of `chat/completions` or `completions` as it is; give the success's body.

        An answer that is no stream begins when it is whole: that is not silence before then.
        """
        patience = self._patience if is_stream else MAX_WHOLE_TIME if deadline is None else inf
        times = self._times(time.monotonic(), deadline, patience)
        async with InTime(times, self.refusals):
            return UpstreamRelay(await self._post(path, data, times, request_id, trace))

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        model, dialect = await self.known()
        data = tokens_body(prompt, model, dialect, add_special_tokens=add_special_tokens)
        url, limit = self.config.root / "tokenize", self.config.first_byte_timeout
        return await self._connection.ask("POST", url, read_tokens, limit=limit, data=data)

    async def detokenize(self, token_ids: list[int]) -> str:
        model, dialect = await self.known()
        data = text_body(token_ids, model, dialect)
        url, limit = self.config.root / "detokenize", self.config.first_byte_timeout
        return await self._connection.ask("POST", url, read_text, limit=limit, data=data)

    def can_resume(self, request: GenerationRequest, by: Literal["tokens", "text"]) -> bool:
        """Whether it can go on with an answer begun elsewhere; no, while unknown what it is."""
        dialect = self._identity.dialect
        return dialect is not None and can_go_on(request, dialect, by)

    @property
    def takes_tokens(self) -> bool:
        """Whether it goes on after the tokens of an answer; no, while unknown what it is."""
        dialect = self._identity.dialect
        return dialect is not None and dialect.resumes == "tokens"

    # About the server

    async def known(self) -> tuple[str, Dialect]:
        """What it calls the model, and how it wants to be asked; asked for once."""
        return await self._identity.known()

    async def learn(self) -> ModelInfo:
        """Ask what it serves; again whenever that may have changed."""
        return await self._identity.learn()

    async def models(self) -> list[ModelCard]:
        return await self._identity.models()

    async def probe(self) -> None:
        """Return when it is healthy; raise why it is not, a wrong key among it."""
        url, limit = self.config.root / "health", self.config.probe_timeout
        try:
            await self._connection.ask("GET", url, bytes, limit=limit)
        except UpstreamRefusedError:  # it has no such route, or not for us: the key opens the list
            await self.models()

    # Requests

    async def _begin(self, request: GenerationRequest) -> tuple[Body, AnswerReader]:
        started = time.monotonic()
        times = self._times(started, request.deadline, self._patience)
        async with InTime(times, self.refusals):
            model, dialect = await self.known()
            path, data = render(request, model, dialect)
            body = await self._post(path, data, times, request.request_id, request.trace)
        if body.content_type != _EVENT_STREAM:
            raise await self._no_stream(body)
        return body, AnswerReader(request, self.refusals, started)

    @property
    def _patience(self) -> float:
        return self.config.first_byte_timeout

    def _times(self, now: float, deadline: float | None, first_byte: float) -> Times:
        return Times.starting(now, deadline, first_byte, self.config.idle_timeout)

    async def _post(
        self, path: str, data: bytes, times: Times, request_id: str, trace: Mapping[str, str]
    ) -> Body:
        headers = _headers(request_id, times) | trace_headers(trace)
        url = self._urls[path]
        return await self._connection.send("POST", url, times, data=data, headers=headers)

    async def _no_stream(self, body: Body) -> HeadraceError:
        """The error of an answer that is none in spite of its status."""
        said = await self._connection.said(body)
        if read_refusal(said).text:
            return self.refusals.of_event(said)
        return UpstreamBrokenError(self.refusals.sentence("its answer is no stream of events"))


def _headers(request_id: str, times: Times) -> dict[str, str]:
    headers = {"X-Request-ID": request_id} if _REQUEST_ID.fullmatch(request_id) else {}
    remaining = times.remaining(time.monotonic())
    return headers if remaining is None else headers | {"X-Request-Timeout": f"{remaining:.3f}"}
