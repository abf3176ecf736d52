"""A checkpoint of ours becomes a folder of `transformers`, never with more of it in memory than one file."""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from trimaran import __version__
from trimaran.data.tokenizer import TOKENIZER_FILE, HuggingFace, Tokenizer
from trimaran.engine.checkpoint.atomic_folder import appearing, check_free
from trimaran.engine.checkpoint.reader import Saved
from trimaran.engine.hugging_face.families import family_of
from trimaran.engine.hugging_face.family import Pair
from trimaran.engine.hugging_face.folder import CONFIG, INDEX, WEIGHTS
from trimaran.engine.parallel.zero import COMPUTE_DTYPE

Tell = Callable[[int, int], None]  # bytes done, of how many


@dataclass(frozen=True)
class Exported:
    family: str
    parameters: int
    bytes: int
    files: list[str]


def export(saved: Saved, out: Path, dtype: str, file_bytes: int, tokenizer: Tokenizer | None, tell: Tell) -> Exported:
    """`file_bytes`: a file that would become larger is followed by another one."""
    model, kind = saved.model, COMPUTE_DTYPE[dtype]
    family = family_of(model)
    check_free(out)
    sizes = {name: prod(shape) * kind.itemsize for name, shape in saved.shapes.items()}
    groups = shared_out(family.pairs(model), sizes, file_bytes)
    names = (
        [WEIGHTS] if len(groups) == 1 else [f"model-{i:05d}-of-{len(groups):05d}.safetensors" for i in _from_1(groups)]
    )
    total, done = sum(sizes.values()), 0
    weight_map: dict[str, str] = {}
    with appearing(out) as folder:
        for name, group in zip(names, groups, strict=True):
            tensors: dict[str, Tensor] = {}
            for pair in group:
                parts = pair.move.theirs(saved.read(pair.ours).to(kind))
                tensors |= {key: part.contiguous() for key, part in zip(pair.theirs, parts, strict=True)}
                done += sizes[pair.ours]
                tell(done, total)
            save_file(tensors, folder / name, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(tensors, name)
        if len(groups) > 1:
            _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
        ends = {"bos_token_id": None, "eos_token_id": tokenizer.eod if tokenizer else None}
        made = {"dtype": str(kind).removeprefix("torch."), "use_cache": True, "trimaran_version": __version__}
        _write_json(folder / CONFIG, {**family.config(model), **ends, **made})
        if isinstance(tokenizer, HuggingFace):
            write_tokenizer(folder, tokenizer, model.seq_len)
        files = sorted(path.name for path in folder.iterdir())
    return Exported(family.name, total // kind.itemsize, total, files)


def shared_out(pairs: Iterable[Pair], sizes: dict[str, int], file_bytes: int) -> list[list[Pair]]:
    """Over files, in order; a tensor that is larger than a file should be has one for itself."""
    groups: list[list[Pair]] = []
    room = 0
    for pair in pairs:
        if sizes[pair.ours] > room:
            groups.append([])
            room = max(file_bytes, sizes[pair.ours])
        groups[-1].append(pair)
        room -= sizes[pair.ours]
    return groups


def write_tokenizer(folder: Path, tokenizer: HuggingFace, longest: int) -> None:
    shutil.copyfile(tokenizer.identity["file"], folder / TOKENIZER_FILE)
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest}
    if tokenizer.eod is not None:
        settings["eos_token"] = tokenizer.tokenizer.id_to_token(tokenizer.eod)
    _write_json(folder / "tokenizer_config.json", settings)


def _from_1(groups: list[Any]) -> range:
    return range(1, len(groups) + 1)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")
