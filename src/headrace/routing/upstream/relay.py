"""An answer that goes on as it came: its body's bytes, without making chunks of them."""

from headrace.routing.http.answer import Take
from headrace.routing.upstream.body import Body


class UpstreamRelay:
    """See `headrace.endpoints.Relayed`. What ends early, falls silent or is late raises."""

    def __init__(self, body: Body) -> None:
        self._body = body

    @property
    def content_type(self) -> str:
        """Without parameters, in lower case."""
        return self._body.content_type

    @property
    def is_over(self) -> bool:
        """Whether all of it has come; a `take` that asks knows whether its piece is the last."""
        return self._body.is_over

    async def forward(self, take: Take) -> bool:
        return await self._body.forward(take)

    def finish(self) -> None:
        """Nothing more is needed: keep the connection, if the body ends soon."""
        self._body.finish()

    async def aclose(self) -> None:
        """Keep the connection where all has come, else close it."""
        self._body.close()
