"""What an upstream serves and which dialect it speaks, asked before the first request at latest."""

import asyncio

from headrace.endpoints import UpstreamConfig
from headrace.errors import NotReadyError
from headrace.generation import ModelInfo
from headrace.routing.upstream.connection import Connection
from headrace.routing.upstream.dialect import DIALECTS, Dialect
from headrace.routing.upstream.errors import UpstreamRefusedError
from headrace.routing.upstream.models import ModelCard, choose, info_of, read_models
from headrace.routing.upstream.refusals import Refusals


class Identity:
    """The answer that was last got; `learn` gets another."""

    def __init__(self, config: UpstreamConfig, connection: Connection, refusals: Refusals) -> None:
        self._config = config
        self._connection = connection
        self._refusals = refusals
        self._learning = asyncio.Lock()
        self._dialect = None if config.dialect is None else DIALECTS[config.dialect]
        self._info: ModelInfo | None = None

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise NotReadyError(self._refusals.sentence("it has not told yet what it serves"))
        return self._info

    @property
    def dialect(self) -> Dialect | None:
        """None as long as nobody knows it."""
        return self._dialect

    async def known(self) -> tuple[str, Dialect]:
        """The model's name there and the dialect, asked for once whoever needs them."""
        if self._config.model is not None and self._dialect is not None:
            return self._config.model, self._dialect
        if self._info is None:
            async with self._learning:
                if self._info is None:
                    await self.learn()
        assert self._info is not None
        assert self._dialect is not None
        return self._info.model_id, self._dialect

    async def learn(self) -> ModelInfo:
        """Ask. A server that shows us no list is taken for one with OpenAI's common words only."""
        try:
            cards = await self.models()
        except UpstreamRefusedError:
            if self._config.model is None:
                raise
            cards = []
        card = choose(cards, self._config.model)
        if card is None:
            complaint = f"it lists {len(cards)} models, and the configuration names none of them"
            raise UpstreamRefusedError(self._refusals.sentence(complaint))
        named = self._config.dialect
        self._dialect = card.dialect if named is None else DIALECTS[named]
        self._info = info_of(card, self._dialect)
        return self._info

    async def models(self) -> list[ModelCard]:
        url = self._config.base / "models"
        return await self._connection.ask("GET", url, read_models, limit=self._config.probe_timeout)
