"""Read by mypy alone: the types that users of the public names see."""

from typing import assert_type

from headrace import LLM, SamplingParams, __version__
from headrace.generation import FinishReason, Message, Usage
from headrace.offline import Answer

assert_type(__version__, str)


def use(llm: LLM) -> None:
    answers = llm.generate(["The sky is"], SamplingParams(max_tokens=4))
    assert_type(answers, list[Answer])
    assert_type(answers[0].text, str)
    assert_type(answers[0].finish_reason, FinishReason)
    assert_type(answers[0].usage, Usage)
    assert_type(llm.chat([Message("user", "Hello")]), list[Answer])
    assert_type(llm.generate("The sky is"), list[Answer])
