"""Whether the server is on its way out. Knows no model."""

import time

from headrace.errors import DrainingError


class Drain:
    """Begins once, and is over when the server is."""

    def __init__(self) -> None:
        self.has_begun = False
        self.ends_at = 0.0  # monotonic; once it has begun

    def begin(self, timeout: float) -> None:
        self.has_begun = True
        self.ends_at = time.monotonic() + timeout

    def refuse_change(self) -> None:
        if self.has_begun:
            raise DrainingError("the server is shutting down", retry_after=1.0)
