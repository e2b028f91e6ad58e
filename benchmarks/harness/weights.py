"""The same weights in the forms that the systems read: GGUF types, or a Hugging Face folder.

Everything is made from one GGUF file and kept for the next run, in a folder of that file's own.
"""

import hashlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

from headrace.errors import ModelFileError
from headrace.modelfiles.sources import fetch

QUANTIZATIONS = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}  # as llama.cpp numbers them


def fetch_gguf(source: str, state_dir: Path) -> Path:
    """The GGUF file that a source names, downloaded once; ModelFileError when it is none."""
    path = fetch(source, state_dir, lambda *_: None)
    if path.suffix != ".gguf":
        raise ModelFileError(f"{source}: systems are compared on a GGUF file, and this is {path}")
    return path


class Weights:
    """One model's weights as a GGUF file, and in the other forms once they are asked for."""

    def __init__(self, original: Path, folder: Path) -> None:
        self._original = original
        self._parent = folder

    @cached_property
    def folder(self) -> Path:
        """Another file, or the same one made anew, has another folder."""
        file = self._original.resolve()
        facts = file.stat()
        identity = f"{file}:{facts.st_size}:{facts.st_mtime_ns}"
        return self._parent / f"{file.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"

    def gguf(self, kind: str) -> Path:
        """The file with all matrices in `kind`; "file" is the original's own mixture."""
        path = self.folder / kind / "model.gguf"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "file":
                path.symlink_to(self._original.resolve())
            else:
                whole(path, lambda part: _rewrite(self._original, part, kind))
        return path

    def huggingface(self) -> Path:
        """A folder in bf16 with config.json, weights and tokenizer.json; needs transformers."""
        folder = self.folder / "huggingface"
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            whole(folder, lambda part: _save_folder(self._original, part))
        return folder


def whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a name beside `path`, so that a half-written one is never taken for it."""
    part = path.with_name(path.name + ".part")
    write(part)
    part.rename(path)


def _rewrite(source: Path, target: Path, kind: str) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    _copy_metadata(reader, writer)
    writer.add_file_type(FILE_TYPES[kind])
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        is_matrix = values.ndim > 1
        wanted = QUANTIZATIONS[kind] if is_matrix else QUANTIZATIONS["f32"]
        writer.add_tensor(tensor.name, quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    written_by_the_writer = {"general.architecture", "general.file_type"}
    for name, entry in reader.fields.items():
        if name.startswith("GGUF.") or name in written_by_the_writer:
            continue
        is_array = entry.types[0] == gguf.GGUFValueType.ARRAY
        element = entry.types[-1] if is_array else None
        writer.add_key_value(name, entry.contents(), entry.types[0], element)


def _save_folder(source: Path, target: Path) -> None:
    # Only vLLM needs this form; the others run without PyTorch.
    import torch  # noqa: PLC0415  # see above
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415  # see above

    place = {"gguf_file": source.name}
    read = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.bfloat16, **place)
    config = read.config
    del config.quantization_config
    # A fresh model, because transformers refuses to save one that was read from GGUF.
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)  # type: ignore[no-untyped-call]
    model.load_state_dict(read.state_dict(), strict=False)
    model.tie_weights()
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, **place).save_pretrained(target)
