"""Many prompts in this process, without a server: `python examples/offline.py`."""

from headrace import LLM, SamplingParams

prompts = ["The capital of France is", "One, two, three,", "Water mills were used to"]

with LLM("smollm2") as llm:
    answers = llm.generate(prompts, SamplingParams(max_tokens=24, temperature=0))

for prompt, answer in zip(prompts, answers, strict=True):
    print(f"{prompt}{answer.text} [{answer.finish_reason}]")
