"""A folder of `transformers`: config.json and safetensors, read as weights of ours."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trimaran.engine.checkpoint.reader import full_shapes
from trimaran.engine.hugging_face.families import family_of_config
from trimaran.spec import Mistake
from trimaran.spec.files import read_mapping

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}
# Constants that older versions of the library saved beside the weights.
CONSTANTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")

OnProgress = Callable[[int, int], None]  # bytes done, bytes in total


def is_hf_folder(path: Path) -> bool:
    return (path / CONFIG).is_file()


class HfFolder:
    """Everything but the values is checked when it is opened: config, names, shapes, dtypes."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise Mistake(f"{path} is not a folder; name one with config.json and model.safetensors in it.")
        if not is_hf_folder(path):
            raise Mistake(f"{path} has no {CONFIG}, so it is not a model of transformers.")
        self.path = path
        config = read_mapping(path / CONFIG)
        self.family = family_of_config(config, str(path / CONFIG))
        self.model = self.family.model(config, path.resolve().name, str(path / CONFIG))
        self.mappings = {mapping.name: mapping for mapping in self.family.mappings(self.model)}
        # The name in the file, and the open file, by full name.
        self.files = {self._full_name(name): (name, file) for name, file in _open_tensors(path).items()}
        self._check()

    def read(self, name: str) -> Tensor:
        """The full tensor in fp32."""
        mapping = self.mappings[name]
        stored = [self.files[each] for each in mapping.hf_names]
        parts = [file.get_tensor(own_name) for own_name, file in stored]
        return mapping.conversion.from_hf(parts).to(torch.float32).contiguous()

    def _full_name(self, name: str) -> str:
        """Files of the base model lack the prefix that all names but the head's have."""
        base = self.family.base
        return name if name.startswith((base, "lm_head.")) else base + name

    def _check(self) -> None:
        known: set[str] = set()
        for name, shape in full_shapes(self.model).items():
            mapping = self.mappings[name]
            expected = mapping.conversion.to_hf(torch.empty(shape, device="meta"))
            for each, like in zip(mapping.hf_names, expected, strict=True):
                self._check_tensor(each, tuple(like.shape))
            known.update(mapping.hf_names)
        tied = {"lm_head.weight"} if self.model.tied_embeddings else set()
        for name in self.files.keys() - known - tied:
            if not name.endswith(CONSTANTS):
                raise Mistake(f"{self.path} holds {name}, which a {self.family.name} with its {CONFIG} does not have.")

    def _check_tensor(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self.files:
            raise Mistake(f"{self.path} lacks {name}, which a {self.family.name} with its {CONFIG} has.")
        own_name, file = self.files[name]
        stored = file.get_slice(own_name)
        if tuple(stored.get_shape()) != shape:
            raise Mistake(
                f"In {self.path} {name} has the shape {tuple(stored.get_shape())}, but by {CONFIG} it is {shape}."
            )
        if stored.get_dtype() not in DTYPES:
            raise Mistake(
                f"In {self.path} {name} is stored as {stored.get_dtype()}; Trimaran reads {', '.join(DTYPES.values())}."
            )


def _open_tensors(path: Path) -> dict[str, Any]:
    """The open file of every tensor, by its name."""
    if (path / INDEX).is_file():
        names = sorted({str(file) for file in _weight_map(path / INDEX).values()})
    elif (path / WEIGHTS).is_file():
        names = [WEIGHTS]
    elif list(path.glob("pytorch_model*.bin")):
        raise Mistake(
            f"{path} has its weights in pytorch_model.bin, which can run arbitrary code when it is loaded; save it with"
            f" transformers' save_pretrained, which writes {WEIGHTS}."
        )
    else:
        raise Mistake(f"{path} has neither {WEIGHTS} nor {INDEX}, so there are no weights in it.")
    return {key: file for file in (_open_safetensors(path / name) for name in names) for key in file.keys()}  # noqa: SIM118


def _weight_map(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_text("utf-8"))["weight_map"])
    except (OSError, ValueError, KeyError, TypeError):
        raise Mistake(f"{path} does not say which file holds which weights.") from None


def _open_safetensors(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise Mistake(f"{path} is missing, though {path.parent / INDEX} names it.") from None
    except (SafetensorError, OSError) as error:
        raise Mistake(f"{path} is damaged or truncated: {error}.") from None
