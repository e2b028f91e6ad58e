"""Changes fields of a JSON object without looking into its other ones. Knows no API."""

from collections.abc import Mapping

import msgspec

from headrace.errors import InvalidRequestError

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def with_fields(body: bytes, fields: Mapping[str, object]) -> bytes:
    """The body with these at its top level; the same bytes where it has them already.

    `body` is a valid object. The values of all other fields stay as they are, byte for byte; of a
    field that is there twice the last one counts.
    """
    try:
        found = _decode(body)
    except RecursionError:
        raise InvalidRequestError("The body is nested too deeply.") from None
    changed = {name: msgspec.Raw(_encode(value)) for name, value in fields.items()}
    if all(bytes(found.get(name, b"")) == bytes(value) for name, value in changed.items()):
        return body
    return _encode(found | changed)
