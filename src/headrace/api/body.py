"""Reads a JSON body into a struct; every way it can be wrong is one sentence that names the field.

msgspec decodes and checks types and ranges in one pass; see docs/decisions for the measurement.
"""

import gc
import re
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.disconnect import within
from headrace.api.exchange import Exchange, exchange_of
from headrace.errors import InvalidRequestError

T = TypeVar("T", bound=msgspec.Struct)

_AT = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>\w+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*)`", re.DOTALL)
_JSON_NAMES = {
    "`int`": "an integer",
    "`float`": "a number",
    "`str`": "a string",
    "`bool`": "true or false",
    "`array`": "a list",
    "`object`": "an object",
    "`null`": "null",
}


async def read_json(request: Request, kind: type[T], deadline: float) -> T:
    """Decode the request's body; InvalidRequestError names the dotted field."""
    return decode_json(await read_body(request, deadline), kind)


async def read_body(request: Request, deadline: float) -> bytes:
    """The request's body, which says that it is JSON."""
    exchange = exchange_of(request.scope)
    require_json(exchange)
    body = exchange.take_body()
    if body is None:
        exchange.is_body_arriving = True
        with within(deadline):
            # Not request.body(), which would keep it for as long as the answer takes.
            body = b"".join([piece async for piece in request.stream()])
        exchange.is_body_arriving = False
    return body


def decode_json(body: bytes, kind: type[T]) -> T:
    # JSON has no cycles; a body of many small lists would start the collector again and again
    # while the event loop stands.
    collects = gc.isenabled()
    gc.disable()
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as exc:
        raise _field_error(str(exc)) from None
    except msgspec.DecodeError as exc:
        raise InvalidRequestError(f"The body is not valid JSON: {exc}.") from None
    except UnicodeDecodeError as exc:
        raise InvalidRequestError(f"The body is not valid UTF-8: {exc.reason}.") from None
    except RecursionError:
        raise InvalidRequestError("The body is nested too deeply.") from None
    finally:
        if collects:
            gc.enable()


def require_utf8(body: bytes) -> None:
    """For what is passed on: decoding looks no further than it must."""
    try:
        if not body.isascii():
            body.decode()
    except UnicodeDecodeError as exc:
        raise InvalidRequestError(f"The body is not valid UTF-8: {exc.reason}.") from None


def json_response(answer: object, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


def require_json(exchange: Exchange) -> None:
    """Refuse what a browser sends across sites without asking first."""
    content_type = exchange.header("Content-Type") or ""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise InvalidRequestError(
            "Send the header Content-Type: application/json.", param="Content-Type"
        )


def _field_error(complaint: str) -> InvalidRequestError:
    match = _AT.fullmatch(complaint)
    assert match
    what, path = match["what"], _dotted(match["path"] or "")
    if missing := _MISSING.fullmatch(what):
        path = ".".join(filter(None, (path, missing["field"])))
        return InvalidRequestError(f"{path} is required.", param=path)
    if unknown := _UNKNOWN.fullmatch(what):
        path = ".".join(filter(None, (path, unknown["field"][:80])))
        return InvalidRequestError(f"{path}: there is no such field.", param=path)
    sentence = what[:1].lower() + _in_json_words(what[1:])
    return InvalidRequestError(f"{path or 'The body'}: {sentence}.", param=path or None)


def _dotted(path: str) -> str:
    """`.messages[0].content` as `messages.0.content`."""
    return re.sub(r"\[(\.\.\.|\d+)\]", r".\1", path).strip(".").replace("....", "")


def _in_json_words(sentence: str) -> str:
    for ours, theirs in _JSON_NAMES.items():
        sentence = sentence.replace(ours, theirs)
    return re.sub(r"`([\w |]+)`", lambda m: _alternatives(m[1]), sentence)


def _alternatives(types: str) -> str:
    """`int | null` in the words of JSON."""
    return " or ".join(_JSON_NAMES.get(f"`{name}`", name) for name in types.split(" | "))
