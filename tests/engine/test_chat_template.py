import pytest

from headrace.engine.chat_template import ChatTemplate
from headrace.errors import InvalidRequestError, ModelFileError
from headrace.generation import Chat, Message

CHAT = Chat((Message("user", "Hi <b>", "eve"),))


def render(source: str, chat: Chat = CHAT) -> str:
    return ChatTemplate(source, "model", {"bos_token": "<s>"}).render(chat, lambda text: text)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>Hi <b>"),
        ("{{ messages[0]['name'] }}{{ eos_token }}", "eve"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi <b>", "name": "eve"}]'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% if true %}\n  {% set x = 1 %}\nx\n{% endif %}\n", "x\n"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "Hi <b>!"),
        ("{% if tools %}t{% endif %}{{ add_generation_prompt }}", "True"),
        ("{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", "1"),
    ],
)
def test_templates_find_what_transformers_gives_them(source: str, expected: str) -> None:
    assert render(source) == expected


def test_the_date_can_be_asked_for() -> None:
    assert render("{{ strftime_now('%Y') }}").isdigit()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages[5].content }}", "has no element 5"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "is unsafe"),
    ],
)
def test_a_template_that_refuses_is_the_callers_error(source: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match="chat template refuses") as caught:
        render(source)
    assert reason in caught.value.message
    assert caught.value.param == "messages"


def test_a_broken_template_is_the_files_error() -> None:
    with pytest.raises(ModelFileError, match="model: the chat template is broken at line 2"):
        render("\n{% if %}")
