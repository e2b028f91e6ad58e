import httpx
import msgspec
import pytest

from api.scripted import ScriptedModel


async def test_text_becomes_tokens_and_text_again(http: httpx.AsyncClient) -> None:
    tokens = (await http.post("/tokenize", json={"prompt": "mill", "model": "chat"})).json()
    assert tokens == {
        "model": "chat@1",
        "count": 5,
        "max_model_len": 1024,
        "tokens": [1, 109, 105, 108, 108],
    }
    text = await http.post("/detokenize", json={"tokens": tokens["tokens"][1:]})
    assert text.json() == {"model": "chat@1", "text": "mill"}
    assert text.headers["x-headrace-version"] == "chat@1"


async def test_what_an_upstream_does_not_tell_is_not_checked(
    http: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.info = msgspec.structs.replace(model.info, vocab_size=None, max_model_len=None)
    told = (await http.post("/tokenize", json={"prompt": "mill"})).json()
    assert told["max_model_len"] is None
    text = await http.post("/detokenize", json={"tokens": told["tokens"][1:]})
    assert text.json()["text"] == "mill"


async def test_pieces_are_given_when_asked_for(http: httpx.AsyncClient) -> None:
    body = {"prompt": "mill", "add_special_tokens": False, "with_pieces": True}
    assert (await http.post("/tokenize", json=body)).json()["pieces"] == ["m", "i", "l", "l"]


async def test_pieces_of_a_very_long_prompt_are_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post("/tokenize", json={"prompt": "x" * 5000, "with_pieces": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "with_pieces")


async def test_messages_are_tokenized_as_a_chat(http: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "ab"}]}]
    assert (await http.post("/tokenize", json={"messages": messages})).json()["count"] == 3


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": [{"role": "user"}]}])
async def test_exactly_one_kind_of_prompt_is_needed(
    http: httpx.AsyncClient, body: dict[str, object]
) -> None:
    assert (await http.post("/tokenize", json=body)).status_code == 400


async def test_a_token_outside_the_vocabulary_is_named(http: httpx.AsyncClient) -> None:
    answer = await http.post("/detokenize", json={"tokens": [5, 256]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens.1")


async def test_an_unknown_model_is_a_404(http: httpx.AsyncClient) -> None:
    answer = await http.post("/tokenize", json={"prompt": "x", "model": "nope"})
    assert answer.status_code == 404
