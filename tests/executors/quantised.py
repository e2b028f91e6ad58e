"""Random weights in a GGUF file's blocks."""

from gguf import GGMLQuantizationType
from gguf.quants import quantize

from executors.tiny import RandomWeights
from headrace.modelfiles.config import ModelConfig
from headrace.modelfiles.quantization import to_float32
from headrace.modelfiles.weights import StoredTensor


class Quantised(RandomWeights):
    """Matrices of a GGUF file's kinds, as its blocks."""

    def __init__(self, config: ModelConfig, kinds: dict[str, str]) -> None:
        super().__init__(config)
        self._stored: dict[str, StoredTensor] = {}
        for name, values in self._tensors.items():
            kind = next((kind for end, kind in kinds.items() if end in name), None)
            if kind is not None:
                blocks = quantize(values, GGMLQuantizationType[kind])
                self._stored[name] = StoredTensor(kind, values.shape, blocks.reshape(-1))
                values[...] = to_float32(self._stored[name])

    def stored(self, name: str) -> StoredTensor:
        return self._stored.get(name) or super().stored(name)
