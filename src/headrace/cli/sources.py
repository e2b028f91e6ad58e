"""`NAME=SOURCE` on the command line, taken apart."""

import re

from headrace.errors import ConfigurationError

_NAMED_SOURCE = re.compile(r"([^=/:]*)=(.+)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def model_of(argument: str) -> dict[str, str]:
    """`NAME=SOURCE` or `SOURCE`; what has a slash or a colon before its = is a source."""
    if not argument:
        raise ConfigurationError("SOURCE: empty")
    named = _NAMED_SOURCE.fullmatch(argument)
    if named is None:
        return {"source": argument}
    name, source = named.groups()
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name!r} cannot be a model's name: letters, digits and ._- can, as in chat={source}"
        )
    return {"name": name, "source": source}
