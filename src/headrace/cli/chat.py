"""`headrace chat`: a conversation with a served model in the terminal."""

import json
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.errors import HeadraceError, UnavailableError

if TYPE_CHECKING:
    import httpx

_HELP = """\
/system TEXT  say how the model should behave, and begin anew
/clear        forget the conversation
/history      show the conversation
/exit         leave (so does Ctrl-D); Ctrl-C stops an answer"""


def chat(
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(help="The model's name; else the first that is served.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="How the model should behave.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0 is greedy.")] = None,
) -> None:
    """Talk with a served model; /help lists the commands."""
    import httpx

    options = {"max_tokens": max_tokens, "temperature": temperature}
    said = {key: value for key, value in options.items() if value is not None}
    timeout = httpx.Timeout(10.0, read=None)
    with httpx.Client(base_url=url.rstrip("/").removesuffix("/v1"), timeout=timeout) as client:
        conversation = Conversation(client, model or _first_model(client), system, said)
        if sys.stdin.isatty():
            import readline  # noqa: F401 - importing it gives input() editing and history

            typer.echo(f"{conversation.model} at {url}. /help lists the commands.")
        for line in _lines():
            if not _take(conversation, line):
                break


class Conversation:
    """The messages so far, and the server that continues them."""

    def __init__(
        self, client: "httpx.Client", model: str, system: str | None, options: dict[str, Any]
    ) -> None:
        """Talk to `model`; `options` go into every request."""
        self.model = model
        self.system = system
        self.turns: list[dict[str, str]] = []
        self._client = client
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
        with (
            _reachable(self._client),
            self._client.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            _check(response)
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield from _text_of(json.loads(line.removeprefix("data: ")))


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


def _first_model(client: "httpx.Client") -> str:
    with _reachable(client):
        response = client.get("/v1/models")
    _check(response)
    models = response.json()["data"]
    if not models:
        raise UnavailableError(f"the server at {client.base_url} serves no model yet")
    return str(models[0]["id"])


@contextmanager
def _reachable(client: "httpx.Client") -> Iterator[None]:
    import httpx

    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol):
        raise UnavailableError(
            f"no server answers at {client.base_url}; start one with `headrace serve smollm2`"
        ) from None
    except httpx.TransportError as error:
        raise UnavailableError(f"the connection to {client.base_url} broke: {error}") from None


def _check(response: "httpx.Response") -> None:
    if response.is_success:
        return
    response.read()
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = "not the answer of a Headrace or OpenAI server; is --url right?"
    raise HeadraceError(f"{response.status_code} from {response.url}: {message}")


def _text_of(event: dict[str, Any]) -> Iterator[str]:
    if "error" in event:
        raise HeadraceError(str(event["error"]["message"]))
    for choice in event["choices"]:
        yield choice["delta"].get("content") or ""
