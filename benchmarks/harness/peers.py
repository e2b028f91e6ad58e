"""How each system is started with the same weights; a peer that is missing says what it lacks."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.systems import Command, Library, Server, System, last_line
from harness.weights import Weights

HERE = Path(__file__).resolve().parent.parent
MODEL = "bench"


class MissingPeerError(Exception):
    """The peer is not installed here or cannot read the model; the message says what it lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What starting any system takes. `context` is the longest sequence of the load, in tokens."""

    weights: Weights
    folder: Path
    max_concurrency: int
    context: int
    num_threads: int
    llama_server: str = "llama-server"
    vllm: str = "vllm"

    def log(self, name: str) -> Path:
        return self.folder / f"{name.replace(':', '-')}.log"


def create(name: str, setup: Setup) -> System:
    """The system called `peer` or `peer:precision`; ValueError when there is no such one."""
    peer, _, precision = name.partition(":")
    if peer not in PEERS:
        raise ValueError(f"no system is called {peer}; there are {', '.join(PEERS)}")
    return PEERS[peer](name, precision, setup)


def headrace(name: str, precision: str, setup: Setup) -> System:
    _, _, executor = name.partition(":")[0].partition("-")
    port = free_port()
    config = headrace_config(name, executor or "auto", precision or "auto", port, setup)
    arguments = [sys.executable, "-m", "headrace", "serve", "--config", str(config)]
    return _server(name, port, setup, arguments, health_path="/health/live")


def headrace_config(
    name: str, executor: str, precision: str, port: int, setup: Setup, **engine: str
) -> Path:
    """Write a settings file for one server of the model's own GGUF file.

    `engine` are more keys of its `[models.engine]`, their values as TOML.
    """
    path = setup.folder / f"{name.replace(':', '-')}.toml"
    path.write_text(
        f'[server]\nport = {port}\nstate_dir = "{setup.folder / "state"}"\n'
        f'[[models]]\nname = "{MODEL}"\nsource = "{setup.weights.gguf("file")}"\n'
        f'[models.engine]\nexecutor = "{executor}"\nprecision = "{precision}"\n'
        + "".join(f"{key} = {value}\n" for key, value in engine.items())
    )
    return path


def openvino_genai(name: str, precision: str, setup: Setup) -> System:
    if importlib.util.find_spec("openvino_genai") is None:
        raise MissingPeerError("`pip install openvino-genai` would make it run")
    path = setup.weights.gguf(precision or "f16")
    child = [sys.executable, "-m", "harness.genai_child"]
    environment = {"PYTHONPATH": str(HERE)}
    # Its start is measured from its own format, as a second start of it would be.
    _convert([*child, "convert", str(path)], environment, setup.log(name))
    command = Command(
        arguments=[*child, "serve", str(path.parent)],
        log=setup.log(name),
        environment=environment,
    )
    return Library(name, command)


def _convert(command: list[str], environment: dict[str, str], log: Path) -> None:
    with log.open("ab") as output:
        done = subprocess.run(
            command, env={**os.environ, **environment}, stdout=output, stderr=output, check=False
        )
    if done.returncode != 0:
        raise MissingPeerError(f"it does not read this model: {last_line(log)}")


def llama_cpp(name: str, precision: str, setup: Setup) -> System:
    binary = shutil.which(setup.llama_server)
    if binary is None:
        raise MissingPeerError(f"{setup.llama_server} is not on the path; see --llama-server")
    port = free_port()
    slots = setup.max_concurrency
    arguments = [
        *(binary, "--model", str(setup.weights.gguf(precision or "file"))),
        *("--alias", MODEL, "--host", "127.0.0.1", "--port", str(port)),
        *("--parallel", str(slots), "--ctx-size", str(slots * setup.context)),
        *("--threads", str(setup.num_threads), "--flash-attn", "off"),
        *("--cache-ram", "0", "--no-webui", "--no-kv-unified"),
    ]
    return _server(
        name, port, setup, arguments, fields={"cache_prompt": False}, health_path="/health"
    )


def vllm(name: str, precision: str, setup: Setup) -> System:
    binary = shutil.which(setup.vllm)
    if binary is None:
        raise MissingPeerError(f"{setup.vllm} is not on the path; see --vllm")
    try:
        folder = setup.weights.huggingface()
    except Exception as error:  # whatever another library fails at, the others go on
        raise MissingPeerError(f"transformers does not convert this model: {error}") from error
    port = free_port()
    arguments = [
        *(binary, "serve", str(folder), "--served-model-name", MODEL),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", {"": "bfloat16", "bf16": "bfloat16", "f32": "float32"}[precision]),
        *("--max-num-seqs", str(setup.max_concurrency), "--max-model-len", "2048"),
        "--no-enable-prefix-caching",
    ]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return _server(name, port, setup, arguments, environment=environment, health_path="/health")


PEERS: dict[str, Callable[[str, str, Setup], System]] = {
    "headrace": headrace,
    "headrace-native": headrace,
    "headrace-openvino": headrace,
    "openvino-genai": openvino_genai,
    "llama.cpp": llama_cpp,
    "vllm": vllm,
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _server(
    name: str,
    port: int,
    setup: Setup,
    arguments: list[str],
    *,
    environment: dict[str, str] | None = None,
    fields: dict[str, object] | None = None,
    health_path: str,
) -> Server:
    command = Command(arguments=arguments, log=setup.log(name), environment=environment or {})
    return Server(
        name,
        f"http://127.0.0.1:{port}",
        MODEL,
        command=command,
        fields=fields,
        health_path=health_path,
    )
