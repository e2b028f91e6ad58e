"""Runs a decoder with OpenVINO on the CPU: compiles the graph, owns the KV cache, takes steps."""

import ctypes
import gc

import numpy as np
import openvino as ov

from headrace.executors.config import ExecutorConfig
from headrace.executors.cpu import Machine, machine
from headrace.executors.executor import Batch, Output, Progress
from headrace.executors.kv_budget import kv_budget
from headrace.executors.openvino.constants import Constants
from headrace.executors.openvino.graph import DecoderGraph
from headrace.executors.openvino.kv_cache import KVCache, block_bytes, block_size
from headrace.executors.openvino.paged_attention import check_version
from headrace.executors.openvino.precision import OPENVINO_KV, Precision, choose_precision
from headrace.executors.openvino.step import Limits, step_inputs
from headrace.executors.sampling.logprobs import logprobs_of
from headrace.executors.sampling.sampler import Sampler
from headrace.modelfiles.config import ModelConfig
from headrace.modelfiles.model import ModelFiles


class OpenVinoExecutor:
    """An `Executor` over one compiled model and one infer request."""

    def __init__(self, files: ModelFiles, config: ExecutorConfig, progress: Progress) -> None:
        check_version()
        here = machine()
        self._precision = choose_precision(config, here)
        num_threads = config.num_threads or here.num_cores
        constants = Constants(
            files.weights,
            self._precision,
            lambda share: progress("reading", share),
            num_threads,
        )
        graph = DecoderGraph(files.config, constants).build()
        constants.wait()
        progress("compiling", 0.0)
        with constants.arena.paging_out():
            compiled = _compile(graph, self._precision, num_threads)
        progress("compiling", 1.0)
        self._cache, self._limits = _make_cache(
            compiled, files.config, config, here, constants.num_bytes
        )
        self._sampler = Sampler(files.config.vocab_size)
        self._request = compiled.create_infer_request()
        self._ports = {port.get_any_name(): index for index, port in enumerate(compiled.inputs)}
        for name, tensor in self._cache.tensors.items():
            self._request.set_tensor(name, tensor)
        progress("warming", 0.0)
        self._warm_up()
        constants.arena.page_out()
        del graph, constants
        _give_back_memory()
        progress("warming", 1.0)

    @property
    def name(self) -> str:
        return "openvino"

    @property
    def precision(self) -> str:
        return self._precision.weights

    @property
    def kv_cache_precision(self) -> str:
        return self._precision.kv_cache

    @property
    def block_size(self) -> int:
        return self._limits.block_size

    @property
    def num_blocks(self) -> int:
        return self._limits.num_blocks

    @property
    def max_model_len(self) -> int:
        return self._limits.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._limits.vocab_size

    def execute(self, batch: Batch) -> Output:
        inputs = step_inputs(batch, self._limits)
        for name, values in inputs.items():
            self._request.set_input_tensor(
                self._ports[name], ov.Tensor(np.asarray(values, np.int32))
            )
        self._request.infer()
        logits = self._request.get_output_tensor(0).data  # (num_rows, vocab_size)
        # argmax of the fetched rows is faster than TopK in the graph, and takes the lowest on ties
        greedy = logits.argmax(axis=1).astype(np.int32)
        _require_finite(logits, greedy)
        token_ids, logprobs = greedy, None
        if batch.sampling is not None:
            token_ids = self._sampler.sample(batch.sampling, logits)
            logprobs = logprobs_of(logits, token_ids, batch.sampling.num_top)
        return Output(token_ids, logprobs, logits if batch.want_logits else None)

    def close(self) -> None:
        del self._request, self._cache
        _give_back_memory()

    def _warm_up(self) -> None:
        """Run the shapes of a first request, so that it does not pay for kernels made on demand."""
        blocks = [0]
        one = np.zeros(1, np.int32)
        for count in (min(self.block_size, self.max_model_len), 1):
            self.execute(
                Batch(
                    token_ids=np.zeros(count, np.int32),
                    num_new_tokens=np.array([count], np.int32),
                    num_computed_tokens=one,
                    block_tables=[blocks],
                    rows=one,
                )
            )


def _require_finite(logits: np.ndarray, greedy: np.ndarray) -> None:
    """Refuse garbage; argmax takes a NaN for the largest, so each row's largest tells."""
    largest = logits[np.arange(len(greedy)), greedy]
    if not np.isfinite(largest).all():
        raise ValueError("the model's logits are not finite")


def _compile(graph: ov.Model, precision: Precision, num_threads: int) -> ov.CompiledModel:
    return ov.Core().compile_model(
        graph,
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": num_threads,
            "ENABLE_CPU_PINNING": False,  # other workers would pin to the same cores
            "INFERENCE_PRECISION_HINT": precision.compute,
            "KV_CACHE_PRECISION": OPENVINO_KV[precision.kv_cache],
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",  # weights as stored, activations as computed
        },
    )


def _make_cache(
    compiled: ov.CompiledModel,
    model: ModelConfig,
    config: ExecutorConfig,
    here: Machine,
    weight_bytes: int,
) -> tuple[KVCache, Limits]:
    ports = [port for port in compiled.inputs if "_cache." in port.get_any_name()]
    size = block_size(ports)
    budget = kv_budget(
        model,
        config,
        block_size=size,
        bytes_per_block=block_bytes(ports),
        available=here.available_memory,
        weight_bytes=weight_bytes,
    )
    limits = Limits(model.vocab_size, budget.num_blocks, size, budget.max_model_len)
    return KVCache(ports, budget.num_blocks), limits


def _give_back_memory() -> None:
    """Return freed heap to the system; glibc keeps it otherwise. Other libcs have no such call."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
