"""A request of OpenAI's API: answered by a model of ours, or passed on as it came."""

from dataclasses import dataclass
from functools import partial
from typing import cast

from headrace.api.exchange import Exchange
from headrace.api.openai.keeping import KeptBytes
from headrace.api.openai.parsing import Posted
from headrace.api.openai.relay import Relay
from headrace.api.openai.stream import OpenAIWire
from headrace.api.sending import Sender
from headrace.api.serving import Serving
from headrace.api.sse import Generation
from headrace.endpoints import Router
from headrace.generation import LanguageModel


@dataclass(frozen=True, slots=True)
class OpenAIWork:
    """Which of both, the model tells once it is acquired. See `headrace.api.sse.Work`."""

    model: str
    posted: Posted
    kept_bytes: KeptBytes

    @property
    def deadline(self) -> float:
        return self.posted.deadline

    @property
    def user(self) -> str | None:
        return self.posted.asked.user

    @property
    def stream(self) -> bool:
        return self.posted.stream

    async def answer(
        self, serving: Serving, model: LanguageModel, exchange: Exchange, sender: Sender
    ) -> bytes:
        if getattr(model, "relays", False):
            router = cast("Router", model)
            relay = Relay(
                self.posted, serving.metrics, router, exchange, sender, kept_bytes=self.kept_bytes
            )
            return await relay.answer()
        return await self._generation().answer(serving, model, exchange, sender)

    def _generation(self) -> Generation:
        parsed = self.posted.parse()
        return Generation(
            model=self.model,
            requests=parsed.requests,
            deadline=self.deadline,
            stream=self.stream,
            wire=partial(
                OpenAIWire,
                self.posted.kind.dialect,
                parsed.head,
                include_usage=parsed.include_usage,
                return_token_ids=parsed.return_token_ids,
            ),
        )
