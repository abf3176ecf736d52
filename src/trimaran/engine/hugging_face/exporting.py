"""Writes a checkpoint of ours as a folder of `transformers`, with at most one file of it in memory."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from trimaran import __version__
from trimaran.data.tokenizer import TOKENIZER_FILE, HuggingFace, Tokenizer
from trimaran.engine.checkpoint.atomic_folder import atomic_folder
from trimaran.engine.checkpoint.reader import SavedCheckpoint
from trimaran.engine.hugging_face.families import family_of
from trimaran.engine.hugging_face.family import TensorMapping
from trimaran.engine.hugging_face.folder import CONFIG, INDEX, WEIGHTS, OnProgress
from trimaran.engine.parallel.zero import COMPUTE_DTYPE


@dataclass(frozen=True)
class HfExport:
    family: str
    parameters: int
    bytes: int
    files: list[str]


def export(
    saved: SavedCheckpoint,
    out: Path,
    dtype: str,
    file_bytes: int,
    tokenizer: Tokenizer | None,
    on_progress: OnProgress,
) -> HfExport:
    """`file_bytes`: the largest size of a file with more than one tensor."""
    model, torch_dtype = saved.model, COMPUTE_DTYPE[dtype]
    family = family_of(model)
    sizes = {name: prod(shape) * torch_dtype.itemsize for name, shape in saved.shapes.items()}
    groups = split_into_files(family.mappings(model), sizes, file_bytes)
    count = len(groups)
    names = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)] if count > 1 else [WEIGHTS]
    total, done = sum(sizes.values()), 0
    weight_map: dict[str, str] = {}
    with atomic_folder(out) as folder:
        for name, group in zip(names, groups, strict=True):
            tensors: dict[str, Tensor] = {}
            for mapping in group:
                parts = mapping.conversion.to_hf(saved.read(mapping.name).to(torch_dtype))
                tensors |= {key: part.contiguous() for key, part in zip(mapping.hf_names, parts, strict=True)}
                done += sizes[mapping.name]
                on_progress(done, total)
            save_file(tensors, folder / name, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(tensors, name)
        saved.verify()
        if count > 1:
            _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
        ends = {"bos_token_id": None, "eos_token_id": tokenizer.eod if tokenizer else None}
        written_by = {
            "dtype": str(torch_dtype).removeprefix("torch."),
            "use_cache": True,
            "trimaran_version": __version__,
        }
        _write_json(folder / CONFIG, {**family.config(model), **ends, **written_by})
        if isinstance(tokenizer, HuggingFace):
            write_tokenizer(folder, tokenizer, model.seq_len)
        files = sorted(path.name for path in folder.iterdir())
    return HfExport(family.name, total // torch_dtype.itemsize, total, files)


def split_into_files(
    mappings: Iterable[TensorMapping], sizes: dict[str, int], file_bytes: int
) -> list[list[TensorMapping]]:
    """In order; a tensor that is larger than `file_bytes` has a file of its own."""
    groups: list[list[TensorMapping]] = []
    room = 0
    for mapping in mappings:
        size = sizes[mapping.name]
        if size > room:
            groups.append([])
            room = max(file_bytes, size)
        groups[-1].append(mapping)
        room -= size
    return groups


def write_tokenizer(folder: Path, tokenizer: HuggingFace, seq_len: int) -> None:
    shutil.copyfile(tokenizer.identity["file"], folder / TOKENIZER_FILE)
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": seq_len}
    if tokenizer.eod is not None:
        settings["eos_token"] = tokenizer.tokenizer.id_to_token(tokenizer.eod)
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")
