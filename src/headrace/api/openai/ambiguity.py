"""Refuses bodies that another server could read otherwise than we do. Knows no request.

Of a name that is there twice we take the last, others the first; some take `Model` for `model`.
Whoever passes such a body on would let it ask for what nobody here has looked at.
"""

from collections.abc import Iterable

import msgspec

from headrace.errors import InvalidRequestError

READ_HERE = ("model", "stream", "stream_options", "return_token_ids", "answered")
_WRITTEN = {name: b'"%s"' % name.encode() for name in READ_HERE}
_LENGTHS = frozenset(map(len, READ_HERE))

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def require_one_reading(body: bytes) -> None:
    """Refuse a second name for what is read here; `body` is a valid object."""
    fields = _decode(body)
    _refuse_other_spellings(fields)
    if b"\\" in body and _num_outside(fields.values(), body, b"\\"):
        raise InvalidRequestError("The body: names of fields must be written without escapes.")
    for name, written in _WRITTEN.items():
        if name in fields and body.find(written) != body.rfind(written):
            _refuse_if_twice(name, _num_outside(fields.values(), body, written))


def _refuse_other_spellings(names: Iterable[str]) -> None:
    for name in names:
        # Folded, since to some servers even the sign of kelvin is a k.
        if len(name) in _LENGTHS and name not in _WRITTEN and name.casefold() in _WRITTEN:
            complaint = f"{name}: there is no such field; it is written {name.casefold()}."
            raise InvalidRequestError(complaint, param=name)


def _refuse_if_twice(name: str, num_written: int) -> None:
    if num_written > 1:
        raise InvalidRequestError(f"{name} is there twice.", param=name)


def _num_outside(values: Iterable[msgspec.Raw], body: bytes, sought: bytes) -> int:
    """How often it is there outside of the values: in names, or in a value that gave way."""
    return body.count(sought) - sum(bytes(value).count(sought) for value in values)
