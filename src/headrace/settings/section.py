"""What every section is: keys that are known, and values that stay."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

MAX_NUMBER = (1 << 63) - 1  # what a frame to a worker holds


class Section(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def absolute(path: Path) -> Path:
    try:
        path = path.expanduser()
    except RuntimeError:  # of nobody's home
        raise ValueError("should begin with a home that is there") from None
    if not path.is_absolute():
        raise ValueError("should be an absolute path")
    return path
