"""A streamed chat with the official `openai` client: `python examples/openai_stream.py [URL]`."""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = OpenAI(base_url=f"{url}/v1", api_key="none")

stream = client.chat.completions.create(
    model="smollm2",
    messages=[{"role": "user", "content": "Tell me about water mills in three sentences."}],
    max_tokens=128,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f"\n{chunk.usage.completion_tokens} tokens")
