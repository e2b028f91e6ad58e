import io
import json
from collections.abc import Callable

import httpx
import pytest

from headrace.cli import chat, main
from headrace.cli.chat import Conversation
from headrace.client.connection import Connection
from headrace.errors import HeadraceError, UnavailableError

Answer = Callable[[httpx.Request], httpx.Response]


def events(*pieces: str) -> str:
    chunks = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"])


def conversation(answer: Answer, system: str | None = None) -> Conversation:
    server = Connection("http://server", transport=httpx.MockTransport(answer))
    return Conversation(server, "smollm2", system, {"max_tokens": 5})


def test_an_answer_streams_and_becomes_part_of_the_conversation() -> None:
    bodies = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, text=events("Hel", "lo"))

    talk = conversation(answer, system="Be brief.")
    assert list(talk.answer("Hi")) == ["Hel", "lo"]
    assert "".join(talk.answer("Again")) == "Hello"
    assert bodies[1]["max_tokens"] == 5
    assert [message["role"] for message in bodies[1]["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert talk.turns[-1] == {"role": "assistant", "content": "Hello"}


def test_a_stopped_answer_is_kept_as_far_as_it_came() -> None:
    talk = conversation(lambda _: httpx.Response(200, text=events("one ", "two ", "three")))
    answer = talk.answer("Count")
    assert next(answer) == "one "
    with pytest.raises(KeyboardInterrupt):
        answer.throw(KeyboardInterrupt())
    assert talk.turns[-1] == {"role": "assistant", "content": "one "}


def test_a_refused_question_leaves_no_trace() -> None:
    refusal = {"error": {"message": "too long"}}
    talk = conversation(lambda _: httpx.Response(400, json=refusal))
    with pytest.raises(HeadraceError, match="too long"):
        list(talk.answer("..."))
    assert talk.turns == []


def test_an_error_inside_a_stream_is_raised() -> None:
    text = events("Hel").replace("data: [DONE]", 'data: {"error": {"message": "worker died"}}')
    talk = conversation(lambda _: httpx.Response(200, text=text))
    with pytest.raises(HeadraceError, match="worker died"):
        list(talk.answer("Hi"))


def test_a_page_of_something_else_is_not_taken_for_an_answer() -> None:
    talk = conversation(lambda _: httpx.Response(404, text="<html>"))
    with pytest.raises(HeadraceError, match="is --url right"):
        list(talk.answer("Hi"))


def test_a_broken_connection_is_said_plainly() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("reset", request=request)

    with pytest.raises(UnavailableError, match="broke: reset"):
        list(conversation(answer).answer("Hi"))


def test_commands_act_on_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    talk = conversation(lambda _: httpx.Response(200, text=events("Hello")))
    assert chat._take(talk, "Hi")
    assert chat._take(talk, "/history")
    assert capsys.readouterr().out == "Hello\nuser: Hi\nassistant: Hello\n"
    assert chat._take(talk, "/system Be brief.")
    assert talk.messages == [{"role": "system", "content": "Be brief."}]
    assert chat._take(talk, "Hi")
    assert chat._take(talk, "/clear")
    assert talk.turns == []
    assert chat._take(talk, "/nothing")
    assert "unknown command /nothing" in capsys.readouterr().out
    assert not chat._take(talk, "/exit")


def test_bytes_that_are_no_text_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = io.TextIOWrapper(io.BytesIO(b"bye \xff\n"), errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", typed)
    assert list(chat._lines()) == ["bye \ufffd"]


@pytest.mark.parametrize("is_said", [True, False])
def test_no_server_is_one_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, is_said: bool
) -> None:
    url = "http://127.0.0.1:9"  # the discard port: nothing listens
    monkeypatch.setenv("HEADRACE_URL", "http://[x" if is_said else url)
    with pytest.raises(SystemExit) as end:
        main(["chat", "--url", url] if is_said else ["chat"])
    assert end.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: no server answers at http://127.0.0.1:9")
    assert error.count("\n") == 1
