"""What a body of OpenAI's API asks for, as far as whoever passes it on must know.

All else in it, such as tools, images or a server's own fields, is the answering server's to read.
"""

import msgspec

from headrace.api.body import decode_json, require_utf8
from headrace.api.openai.schema import ModelName
from headrace.api.sampling import Choices, User
from headrace.errors import InvalidRequestError
from headrace.routing.keys import LOOKED_AT

_NOTHING = frozenset({b"", b"null", b"[]"})


class AskedFields(msgspec.Struct, kw_only=True):
    """What chat and completions have in common."""

    model: ModelName
    stream: bool | None = None
    stream_options: dict[str, msgspec.Raw] | None = None
    return_token_ids: bool | None = None
    answered: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    functions: msgspec.Raw = msgspec.Raw()
    n: Choices | None = None
    user: User | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with it."""
        return bytes((self.stream_options or {}).get("include_usage", b"")) == b"true"

    @property
    def resumes(self) -> bool:
        """Whether the client has the beginning of the answer."""
        return bytes(self.answered) not in _NOTHING

    @property
    def calls_tools(self) -> bool:
        return not {bytes(self.tools), bytes(self.functions)} <= _NOTHING


class AskedChat(AskedFields, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: msgspec.Raw

    @property
    def beginning(self) -> str:
        """Of what is to be answered, as JSON."""
        return _beginning(self.messages)

    @property
    def num_choices(self) -> int:
        return self.n or 1


class AskedCompletion(AskedFields, kw_only=True):
    """`POST /v1/completions`."""

    prompt: msgspec.Raw

    @property
    def beginning(self) -> str:
        """Of what is to be continued, as JSON."""
        return _beginning(self.prompt)

    @property
    def num_choices(self) -> int:
        return (self.n or 1) * _num_prompts(self.prompt)


Asked = AskedChat | AskedCompletion


def read_asked(body: bytes, kind: type[Asked]) -> Asked:
    """Refuses what is no JSON in UTF-8, or has no such fields."""
    asked = decode_json(body, kind)
    require_utf8(body)
    return asked


def without_body(asked: Asked) -> Asked:
    """What of it is no view of the body, so that the body can go."""
    names = [
        name for name in asked.__struct_fields__ if isinstance(getattr(asked, name), msgspec.Raw)
    ]
    nothing = dict.fromkeys(names, msgspec.Raw())
    return msgspec.structs.replace(asked, stream_options=None, **nothing)


def _beginning(raw: msgspec.Raw) -> str:
    return str(memoryview(raw)[:LOOKED_AT], "utf-8", "replace")


def _num_prompts(raw: msgspec.Raw) -> int:
    """A list of token ids is one prompt. Looks no deeper than at the first item's first byte."""
    if not _begins(raw, b"["):
        return 1
    try:
        prompts = _decode_list(raw)
    except RecursionError:
        raise InvalidRequestError("The body is nested too deeply.") from None
    return len(prompts) if prompts and _begins(prompts[0], b'"[') else 1


def _begins(raw: msgspec.Raw, marks: bytes) -> bool:
    return memoryview(raw)[0] in marks


_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
