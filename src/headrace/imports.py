"""Imports fast: without garbage collection, and without optional parts that are not used."""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def fast_imports(*, hidden: Sequence[str] = ()) -> Iterator[None]:
    """Have the imports in the block find none of the `hidden` modules; afterwards all are found.

    A library that asks for one of them goes on as if it were not installed. What was imported
    before keeps what it has. Other threads see the same while the block runs.
    """
    is_collecting = gc.isenabled()
    gc.disable()  # nearly all that an import makes stays
    absent = [module for module in hidden if module not in sys.modules]
    # None is how the import system is told that there is no such module.
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for module in absent:
            sys.modules.pop(module, None)
        if is_collecting:
            gc.enable()
