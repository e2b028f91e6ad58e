"""Which trace headers of a caller go on to an upstream: those of W3C's Trace Context."""

import re
from collections.abc import Mapping

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")


def trace_headers(context: Mapping[str, str]) -> dict[str, str]:
    """`traceparent` and `tracestate`. A malformed parent drops both, as the standard wants it."""
    parent, state = context.get("traceparent", ""), context.get("tracestate", "")
    if not _TRACEPARENT.fullmatch(parent):
        return {}
    headers = {"traceparent": parent}
    return headers | {"tracestate": state} if _TRACESTATE.fullmatch(state) else headers
