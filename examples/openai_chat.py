"""A chat with the official `openai` client: `python examples/openai_chat.py [URL]`."""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = OpenAI(base_url=f"{url}/v1", api_key="none")

answer = client.chat.completions.create(
    model="smollm2",
    messages=[
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is the capital of France?"},
    ],
    max_tokens=64,
    temperature=0,
)
print(answer.choices[0].message.content)
print(answer.usage)
