"""Renders conversations by a model's own Jinja2 template, sandboxed, for it may be anyone's."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.errors import InvalidRequestError, ModelFileError
from headrace.generation import Chat, Message


class ChatTemplate:
    """One compiled template with the variables it finds, as transformers gives them."""

    def __init__(self, source: str, where: str, variables: Mapping[str, str]) -> None:
        self.source = source
        self._variables = variables
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFileError(
                f"{where}: the chat template is broken at line {error.lineno}: {error.message}"
            ) from None

    def render(self, chat: Chat, alter: Callable[[str], str]) -> str:
        """The whole prompt; every text of the caller passes through `alter` first."""
        messages = [_fields(message, alter) for message in chat.messages]
        try:
            return self._template.render(
                **self._variables,
                messages=messages,
                add_generation_prompt=chat.add_generation_prompt,
                tools=None,
                documents=None,
            )
        except Exception as error:  # a template is foreign code: it can fail in any way
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error


def _fields(message: Message, alter: Callable[[str], str]) -> dict[str, str]:
    fields = {"role": alter(message.role), "content": alter(message.content)}
    if message.name is not None:
        fields["name"] = alter(message.name)
    return fields


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks an assistant's words for training; here they are just text."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    *,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: Any) -> None:  # noqa: ANN401  # whatever a template passes
    raise jinja2.TemplateError(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)
