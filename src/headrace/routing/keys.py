"""What choosing an endpoint may look at, taken from a request."""

from headrace.endpoints import RelayRequest
from headrace.generation import Chat, GenerationRequest
from headrace.routing.balance.strategy.strategy import RequestKey

CHARACTERS_A_TOKEN = 4  # in English; loads are compared with each other, so a rough one will do
LOOKED_AT = 1 << 16  # characters of a prompt that tell where its prefix may be known


def key_of(request: GenerationRequest, *, with_prompt: bool) -> RequestKey:
    """Without the prompt where no strategy asks for it: to join a chat's messages takes time."""
    return RequestKey(
        user=request.user,
        prompt=_beginning(request) if with_prompt else "",
        num_tokens=_num_tokens(request),
        salt=request.cache_salt,
    )


def key_of_relay(request: RelayRequest) -> RequestKey:
    return RequestKey(user=request.user, prompt=request.prompt, num_tokens=request.num_tokens)


def _num_tokens(request: GenerationRequest) -> int:
    prompt = request.prompt
    if isinstance(prompt, list):
        return len(prompt)
    if isinstance(prompt, str):
        return len(prompt) // CHARACTERS_A_TOKEN
    return sum(len(message.content) for message in prompt.messages) // CHARACTERS_A_TOKEN


def _beginning(request: GenerationRequest) -> str | list[int]:
    prompt = request.prompt
    return _beginning_of_chat(prompt) if isinstance(prompt, Chat) else prompt[:LOOKED_AT]


def _beginning_of_chat(chat: Chat) -> str:
    parts: list[str] = []
    size = 0
    for message in chat.messages:
        parts += (message.role, "\n", message.content[:LOOKED_AT], "\n")
        size += len(message.content)
        if size >= LOOKED_AT:
            break
    return "".join(parts)[:LOOKED_AT]
