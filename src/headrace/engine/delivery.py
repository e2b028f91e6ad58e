"""What one step hands to the readers of requests, the same in the worker and across the channel."""

import msgspec

from headrace.errors import HeadraceError
from headrace.generation import Chunk


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """A chunk for a request, or the error that ends it; exactly one of the two is set.

    A request is over after its error, or after the last chunk of each of its sequences.
    """

    request_id: str
    chunk: Chunk | None = None
    error: HeadraceError | None = None
