"""What an upstream lists under `/v1/models`, and what can be known of a model from that."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.generation import ModelInfo
from headrace.routing.upstream.dialect import Dialect, dialect_of_owner

UNKNOWN = "unknown"
"""Of an architecture, which only the process that runs it knows."""

Size = Annotated[int, Meta(ge=0, le=1 << 40)]


class ModelMeta(msgspec.Struct):
    """llama.cpp's words about its model."""

    n_vocab: Size | None = None
    n_ctx: Size | None = None  # of a slot, where the version tells it


class ModelCard(msgspec.Struct):
    """One model of a list. `max_model_len` is vLLM's and ours."""

    id: str
    owned_by: Any = None
    max_model_len: Size | None = None
    meta: ModelMeta | None = None

    @property
    def dialect(self) -> Dialect:
        return dialect_of_owner(self.owned_by if isinstance(self.owned_by, str) else "")


class ModelList(msgspec.Struct):
    """`GET /v1/models`."""

    data: list[ModelCard]


_decode = msgspec.json.Decoder(ModelList).decode


def read_models(answer: bytes) -> list[ModelCard]:
    return _decode(answer).data


def choose(cards: list[ModelCard], model: str | None) -> ModelCard | None:
    """The named one, whether or not it is listed; without a name the only one."""
    if model is None:
        return cards[0] if len(cards) == 1 else None
    listed = next((card for card in cards if card.id == model), None)
    # Aliases are not listed everywhere; the server's other models tell what it is.
    return listed or ModelCard(model, cards[0].owned_by if cards else None)


def info_of(card: ModelCard, dialect: Dialect) -> ModelInfo:
    meta = card.meta or ModelMeta()
    return ModelInfo(
        model_id=card.id,
        architecture=UNKNOWN,
        executor=f"upstream-{dialect.name}",
        precision=None,
        kv_cache_precision=None,
        max_model_len=card.max_model_len or meta.n_ctx or None,
        vocab_size=meta.n_vocab or None,
        block_size=None,
        num_blocks=None,
        has_chat_template=True,
        fingerprint="",
    )
