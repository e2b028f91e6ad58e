"""The headers of W3C's Trace Context that a client sent, as they came."""

from starlette.types import Scope

from headrace.api.exchange import exchange_of

TRACE_HEADERS = ("traceparent", "tracestate")


def trace_of(scope: Scope) -> dict[str, str]:
    """Whoever passes them on checks them: what is malformed is dropped there."""
    exchange = exchange_of(scope)
    found = {name: exchange.header(name) for name in TRACE_HEADERS}
    return {name: value for name, value in found.items() if value is not None}
