from collections.abc import Iterator

import pytest

import headrace
from headrace import LLM, SamplingParams
from headrace.errors import ConfigurationError, InvalidRequestError, ModelFileError
from headrace.generation import Message
from real_server import MODEL, cache_dir

GREEDY = SamplingParams(max_tokens=6, temperature=0)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(MODEL, state_dir=cache_dir(), max_num_seqs=4, max_model_len=512) as model:
        yield model


def test_answers_come_in_order_and_equal_those_given_alone(llm: LLM) -> None:
    prompts = ["One, two, three,", "The capital of France is", "Red, green and"] * 4
    together = llm.generate(prompts, GREEDY)
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts[:3]]
    assert [answer.text for answer in together] == [answer.text for answer in alone] * 4
    assert together[0].text.startswith(" four")


def test_an_answer_says_what_it_cost_and_why_it_ended(llm: LLM) -> None:
    (answer,) = llm.generate(["One, two, three,"], GREEDY)
    assert answer.finish_reason == "length"
    assert len(answer.token_ids) == answer.usage.completion_tokens == 6
    (stopped,) = llm.generate("One, two, three,", SamplingParams(temperature=0, stop=(" six",)))
    assert (stopped.text, stopped.finish_reason) == (" four, five,", "stop")
    assert stopped.completions[0].stop_reason == " six"


def test_each_prompt_may_have_its_own_sampling_and_several_completions(llm: LLM) -> None:
    several = SamplingParams(max_tokens=4, n=3, seed=1, logprobs=0)
    first, second = llm.generate(["The", "One, two, three,"], [several, GREEDY])
    assert len(first.completions) == 3
    assert all(len(c.logprobs or ()) == 4 for c in first.completions)
    assert len(second.completions) == 1


def test_a_conversation_goes_through_the_chat_template(llm: LLM) -> None:
    question = [Message("user", "What is the capital of France?")]
    params = SamplingParams(max_tokens=12, temperature=0)
    (answer,) = llm.chat(question, params)
    assert "Paris" in answer.text
    assert [a.text for a in llm.chat([question, question], params)] == [answer.text] * 2
    plain = [{"role": message.role, "content": message.content} for message in question]
    assert [a.text for a in llm.chat(plain, params)] == [answer.text]
    with pytest.raises(InvalidRequestError, match="content") as refusal:
        llm.chat([{"role": "user"}], params)
    assert refusal.value.param == "messages"


def test_no_prompts_give_no_answers(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_a_bad_prompt_ends_the_call_and_leaves_nothing_running(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError) as error:
        llm.generate(["fine", "far too long " * 600], GREEDY)
    assert error.value.__notes__ == ["prompt number 1"]
    assert not llm._engine.has_work
    llm._engine.scheduler.pool.check()
    assert llm.generate("One, two, three,", GREEDY)[0].text.startswith(" four")


def test_a_bad_prompt_is_found_before_any_step(llm: LLM) -> None:
    steps = llm._engine.num_steps
    with pytest.raises(InvalidRequestError) as error:
        llm.generate([*["fine"] * 12, "far too long " * 600], GREEDY)
    assert error.value.__notes__ == ["prompt number 12"]
    assert llm._engine.num_steps == steps


def test_sampling_must_match_the_prompts(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="2 prompts and 1 sampling"):
        llm.generate(["a", "b"], [GREEDY])


def test_a_bad_option_is_named() -> None:
    with pytest.raises(ConfigurationError, match="max_num_seqs: should be greater"):
        LLM(MODEL, max_num_seqs=0)


def test_a_missing_source_is_named() -> None:
    with pytest.raises(ModelFileError, match=r"absent\.gguf"):
        LLM("absent.gguf", state_dir=cache_dir())


def test_a_closed_model_says_so() -> None:
    llm = LLM(MODEL, state_dir=cache_dir(), max_model_len=64)
    llm.close()
    llm.close()
    with pytest.raises(InvalidRequestError, match="closed"):
        llm.generate("Hi")


def test_the_package_offers_its_names_lazily() -> None:
    assert headrace.LLM is LLM
    with pytest.raises(AttributeError, match="absent"):
        headrace.absent  # noqa: B018 - the access is the test
