"""`headrace chat`: a conversation with a served model in the terminal."""

import json
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.session import DEFAULT_URL, Url
from headrace.errors import HeadraceError, UnavailableError

if TYPE_CHECKING:  # help is immediate
    from headrace.client.connection import Connection

_HELP = """\
/system TEXT  say how the model should behave, and begin anew
/clear        forget the conversation
/history      show the conversation
/exit         leave (so does Ctrl-D); Ctrl-C stops an answer"""


def chat(
    url: Url = DEFAULT_URL,
    model: Annotated[
        str | None, typer.Option(help="The model's name; else the first that is served.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="How the model should behave.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0 is greedy.")] = None,
) -> None:
    """Talk with a served model; /help lists the commands."""
    from headrace.client.connection import Connection

    options = {"max_tokens": max_tokens, "temperature": temperature}
    said = {key: value for key, value in options.items() if value is not None}
    with closing(Connection(url)) as server:
        conversation = Conversation(server, model or _first_model(server), system, said)
        if sys.stdin.isatty():
            import readline  # noqa: F401 - importing it gives input() editing and history

            typer.echo(f"{conversation.model} at {url}. /help lists the commands.")
        for line in _lines():
            if not _take(conversation, line):
                break


class Conversation:
    """The messages so far, and the server that continues them."""

    def __init__(
        self, server: "Connection", model: str, system: str | None, options: dict[str, Any]
    ) -> None:
        """Talk to `model`; `options` go into every request."""
        self.model = model
        self.system = system
        self.turns: list[dict[str, str]] = []
        self._server = server
        self._options = options

    @property
    def messages(self) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return system + self.turns

    def clear(self) -> None:
        self.turns.clear()

    def answer(self, text: str) -> Generator[str]:
        """Stream the answer to `text`. An answer left early is kept as far as it came."""
        said = ""
        self.turns.append({"role": "user", "content": text})
        try:
            for piece in self._stream():
                said += piece
                yield piece
        finally:
            if said:
                self.turns.append({"role": "assistant", "content": said})
            else:
                self.turns.pop()

    def _stream(self) -> Iterator[str]:
        body = {"model": self.model, "messages": self.messages, "stream": True, **self._options}
        with self._server.stream("POST", "/v1/chat/completions", body) as events:
            for event in events:
                if event.data != b"[DONE]":
                    yield from _text_of(json.loads(event.data))


def _take(conversation: Conversation, line: str) -> bool:
    """Act on one line; False ends the conversation."""
    command, _, argument = line.partition(" ")
    match command:
        case "":
            pass
        case "/exit" | "/quit":
            return False
        case "/help":
            typer.echo(_HELP)
        case "/clear":
            conversation.clear()
        case "/system":
            conversation.system = argument.strip() or None
            conversation.clear()
        case "/history":
            for message in conversation.messages:
                typer.echo(f"{message['role']}: {message['content']}")
        case _ if command.startswith("/") and command[1:].isalpha():
            typer.echo(f"unknown command {command}; /help lists them")
        case _:
            _print_answer(conversation, line)
    return True


def _print_answer(conversation: Conversation, text: str) -> None:
    answer = conversation.answer(text)
    try:
        for piece in answer:
            typer.echo(piece, nl=False)
    except KeyboardInterrupt:
        typer.echo(" [stopped]", nl=False)
    except HeadraceError as error:
        if not sys.stdin.isatty():
            raise
        typer.echo(f"error: {error.message}", err=True)
    finally:
        answer.close()
    typer.echo()


def _lines() -> Iterator[str]:
    """Lines from the terminal or a pipe; Ctrl-C at the prompt only empties the line."""
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            line = input(prompt)
        except KeyboardInterrupt:
            typer.echo(" (/exit or Ctrl-D leaves)")
        except EOFError:
            return
        else:
            # Bytes that are no UTF-8 arrive as lone surrogates, which JSON cannot hold.
            yield line.encode(errors="surrogateescape").decode(errors="replace").strip()


def _first_model(server: "Connection") -> str:
    models = json.loads(server.ask("GET", "/v1/models"))["data"]
    if not models:
        raise UnavailableError(f"the server at {server.url} serves no model yet")
    return str(models[0]["id"])


def _text_of(event: dict[str, Any]) -> Iterator[str]:
    if "error" in event:
        raise HeadraceError(str(event["error"]["message"]))
    for choice in event["choices"]:
        yield choice["delta"].get("content") or ""
