"""The tokenizer and chat template of a Hugging Face folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from headrace.errors import ModelFileError
from headrace.modelfiles.safetensors import parse_json


class HFTokenizerFiles:
    """tokenizer.json and the small files around it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = self._json("tokenizer_config.json")
        self._generation = self._json("generation_config.json")

    @property
    def bos_token(self) -> str | None:
        return self._token("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self._token("eos_token")

    def tokenizer(self) -> Tokenizer:
        path = self._folder / "tokenizer.json"
        if not path.is_file():
            raise ModelFileError(
                f"{self._folder}: holds no tokenizer.json; a tokenizer.model alone is not "
                f"supported (transformers' save_pretrained writes a tokenizer.json)"
            )
        try:
            tokenizer: Tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001  # the library raises bare Exception
            raise ModelFileError(f"{path}: not a tokenizer: {error}") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def eos_token_ids(self, config: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[int, ...]:
        """All that any of the files calls the end."""
        ids: set[int] = set()
        for source in (config, config.get("text_config"), self._generation):
            value = source.get("eos_token_id") if isinstance(source, Mapping) else None
            given = value if isinstance(value, list) else [value]
            ids.update(i for i in given if type(i) is int and i >= 0)
        named = tokenizer.token_to_id(self.eos_token) if self.eos_token else None
        return tuple(sorted(ids if named is None else ids | {named}))

    def chat_template(self) -> str | None:
        """The template's own file first, then the tokenizer's config, which may name several."""
        path = self._folder / "chat_template.jinja"
        if path.is_file():
            try:
                return path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                raise ModelFileError(f"{path}: not UTF-8") from None
        template = self._config.get("chat_template")
        if isinstance(template, list):
            named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
            template = named.get("default")
        return template if isinstance(template, str) else None

    def _token(self, key: str) -> str | None:
        token = self._config.get(key)
        if isinstance(token, dict):
            token = token.get("content")
        return token if isinstance(token, str) else None

    def _json(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        return parse_json(path, path.read_bytes()) if path.is_file() else {}
