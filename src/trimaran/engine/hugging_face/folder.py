"""A folder of `transformers`: config.json and safetensors, read as weights of ours."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trimaran.engine.checkpoint.reader import whole_shapes
from trimaran.engine.hugging_face.families import family_of_config
from trimaran.spec import Mistake
from trimaran.spec.files import read_mapping

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}
# Constants that older versions of the library saved beside the weights.
CONSTANTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


def is_theirs(path: Path) -> bool:
    return (path / CONFIG).is_file()


class Folder:
    """Everything but the numbers is checked at once: config, names, shapes, types."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise Mistake(f"{path} is no folder; name one with config.json and model.safetensors in it.")
        if not is_theirs(path):
            raise Mistake(f"{path} has no {CONFIG}, so it is no model of transformers.")
        self.path = path
        config = read_mapping(path / CONFIG)
        self.family = family_of_config(config, str(path / CONFIG))
        self.model = self.family.model(config, path.resolve().name, str(path / CONFIG))
        self.pairs = {pair.ours: pair for pair in self.family.pairs(self.model)}
        self.files = {self._whole_name(name): (name, file) for name, file in _held(path).items()}
        self._check()

    def read(self, name: str) -> Tensor:
        pair = self.pairs[name]
        parts = [self._file(each).get_tensor(self.files[each][0]) for each in pair.theirs]
        return pair.move.ours(parts).to(torch.float32).contiguous()

    def _file(self, name: str) -> Any:
        return self.files[name][1]

    def _whole_name(self, name: str) -> str:
        """Files of the bare model lack the beginning that all names but the head's have."""
        base = self.family.base
        return name if name.startswith((base, "lm_head.")) else base + name

    def _check(self) -> None:
        known: set[str] = set()
        for name, shape in whole_shapes(self.model).items():
            pair = self.pairs[name]
            wanted = pair.move.theirs(torch.empty(shape, device="meta"))
            for each, like in zip(pair.theirs, wanted, strict=True):
                self._check_one(each, tuple(like.shape))
            known.update(pair.theirs)
        tied = {"lm_head.weight"} if self.model.tied_embeddings else set()
        for name in self.files.keys() - known - tied:
            if not name.endswith(CONSTANTS):
                raise Mistake(f"{self.path} holds {name}, which {self.family.name} has not by its {CONFIG}.")

    def _check_one(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self.files:
            raise Mistake(f"{self.path} lacks {name}, which {self.family.name} has by its {CONFIG}.")
        found = self._file(name).get_slice(self.files[name][0])
        if tuple(found.get_shape()) != shape:
            raise Mistake(
                f"In {self.path} {name} has the shape {tuple(found.get_shape())}, but by {CONFIG} it should be {shape}."
            )
        if found.get_dtype() not in DTYPES:
            raise Mistake(
                f"In {self.path} {name} is stored as {found.get_dtype()}; Trimaran reads {', '.join(DTYPES.values())}."
            )


def _held(path: Path) -> dict[str, Any]:
    """Every tensor's name and the open file that has it."""
    if (path / INDEX).is_file():
        names = sorted({str(file) for file in _weight_map(path / INDEX).values()})
    elif (path / WEIGHTS).is_file():
        names = [WEIGHTS]
    elif list(path.glob("pytorch_model*.bin")):
        raise Mistake(
            f"{path} has its weights in pytorch_model.bin, which can run any program when it is opened; save it with"
            f" transformers' save_pretrained, which writes {WEIGHTS}."
        )
    else:
        raise Mistake(f"{path} has neither {WEIGHTS} nor {INDEX}, so there are no weights in it.")
    return {key: file for file in (_opened(path / name) for name in names) for key in file.keys()}  # noqa: SIM118


def _weight_map(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_text("utf-8"))["weight_map"])
    except (OSError, ValueError, KeyError, TypeError):
        raise Mistake(f"{path} does not say which file has which weights.") from None


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise Mistake(f"{path} is missing, though {path.parent / INDEX} names it.") from None
    except (SafetensorError, OSError) as error:
        raise Mistake(f"{path} is damaged or cut off: {error}.") from None
