"""What every route works with, and how a request finds its model."""

from dataclasses import dataclass

from starlette.requests import Request

from headrace.api.exchange import exchange_of
from headrace.api.traffic import Traffic
from headrace.errors import InvalidRequestError, ModelNotFoundError, NotReadyError
from headrace.registry.registry import Registry
from headrace.registry.status import ModelStatus
from headrace.telemetry.metrics import Metrics

VERSION_HEADER = "X-Headrace-Version"


@dataclass(slots=True)
class Readiness:
    """Whether this server wants traffic; it stops wanting it before it stops answering."""

    is_leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The parts that routes ask; `request_timeout` is the longest a request may take, seconds."""

    registry: Registry
    metrics: Metrics
    readiness: Readiness
    request_timeout: float
    traffic: Traffic

    @property
    def is_ready(self) -> bool:
        return self.registry.is_ready and not self.readiness.is_leaving

    def deadline(self, request: Request) -> float:
        """When this request's answer must be there, on the monotonic clock."""
        return exchange_of(request.scope).deadline(self.request_timeout)

    def available(self) -> list[ModelStatus]:
        """The versions that answer now, or once a request has woken them."""
        return self.registry.available()

    def resolve(self, request: Request, name: str | None) -> str:
        """The name to acquire: the body's model, pinned by the header if there is one."""
        name = name or self._only_model()
        pin = exchange_of(request.scope).header(VERSION_HEADER)
        if pin is None:
            return name
        base = name.partition("@")[0]
        pinned = pin if "@" in pin else f"{base}@{pin}"
        if pinned.partition("@")[0] != base or name not in (base, pinned):
            raise ModelNotFoundError(
                f"{VERSION_HEADER} {pin[:80]!r} is no version of model {name[:80]!r}.",
                param=VERSION_HEADER,
            )
        return pinned

    def _only_model(self) -> str:
        # One that is still loading, or has failed, leaves the others as they were.
        statuses = self.available() or self.registry.statuses()
        names = sorted({status.name for status in statuses})
        if not names:
            raise NotReadyError("No model is loaded.", retry_after=1)
        if len(names) > 1:
            raise InvalidRequestError(
                f"model is required: one of {', '.join(names)}.", param="model"
            )
        return names[0]
