"""YAML and JSON files: a Job, or a noun of it, where any part may be a preset's name or a preset with changes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from trimaran.spec import presets
from trimaran.spec.base import Spec
from trimaran.spec.cluster import Cluster
from trimaran.spec.job import Job
from trimaran.spec.mistake import Mistake, did_you_mean
from trimaran.spec.model import Model, drop_derived
from trimaran.spec.sweep import Sweep

PARTS = {"model": "models", "cluster": "clusters", "trainer": "trainers"}
SUFFIXES = (".yaml", ".yml", ".json")


def load_job(name_or_path: str | Path) -> Job:
    """A preset's name or a Job file; `model: bloom-176b` and `cluster: {preset: fugaku, nodes: 192}` are both good."""
    name, path, known = str(name_or_path), Path(name_or_path), presets.names(presets.JOBS)
    if is_job_preset(name):
        return _job(yaml.safe_load(presets.text(presets.JOBS, name)), name, f"The preset {name}")
    if not path.exists() and path.suffix not in SUFFIXES and path.name == name:
        raise Mistake(f"There is no file {name}, and no job preset of that name.{did_you_mean(name, known)}")
    return _job(read_mapping(path), path.stem, f"The job file {path}")


def load_sweep(name_or_path: str | Path) -> Sweep:
    """A preset's name or a file, whose `base` is a Job, the name of a job preset or file."""
    name, path = str(name_or_path), Path(name_or_path)
    if name in presets.names(presets.SWEEPS) and not path.is_file():
        values, what, stem = yaml.safe_load(presets.text(presets.SWEEPS, name)), f"The preset {name}", name
    elif not path.exists() and path.suffix not in SUFFIXES and path.name == name:
        near = did_you_mean(name, presets.names(presets.SWEEPS))
        raise Mistake(f"There is no file {name}, and no sweep preset of that name.{near}")
    else:
        values, what, stem = read_mapping(path), f"The sweep {path}", path.stem
    base = values.get("base", {})
    job = load_job(base) if isinstance(base, str) else _job(base, stem, f"{what}, its base")
    return Sweep.of({"name": stem, **values, "base": job.model_dump()}, what)


def is_job_preset(name: str) -> bool:
    """Whether it names a job preset; a file of that name goes first, as with models."""
    return name in presets.names(presets.JOBS) and not Path(name).is_file()


def _job(values: Mapping[str, Any], name: str, what: str) -> Job:
    expanded = {key: expand_preset(PARTS[key], value) if key in PARTS else value for key, value in values.items()}
    expanded.setdefault("name", name)
    expanded.setdefault("trainer", presets.trainer("trimaran").model_dump())
    return Job.of(expanded, what)


def load_model(name_or_path: str) -> Model:
    """A preset's name, or the path of a YAML or JSON file."""
    return cast(Model, _named("models", name_or_path))


def load_cluster(name_or_path: str) -> Cluster:
    return cast(Cluster, _named("clusters", name_or_path))


def expand_preset(kind: str, value: Any) -> Any:
    """A name (of a preset, or of a file such as `trimaran probe` writes), or a mapping with such a name as `preset` and
    changes to it, becomes the whole mapping."""
    if isinstance(value, str):
        return _named(kind, value).model_dump()
    if isinstance(value, Mapping) and "preset" in value:
        changes = {key: item for key, item in value.items() if key != "preset"}
        base = _named(kind, str(value["preset"]))
        devices = changes.get("devices_per_node")
        if isinstance(base, Cluster) and base.is_local_cpu and isinstance(devices, int) and devices > 0:
            base = base.with_processes(devices)
        return {**drop_derived(base.model_dump(), changes), **changes}
    return value


def read_mapping(path: Path) -> dict[str, Any]:
    text = read_text(path)
    try:
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (yaml.YAMLError, json.JSONDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else getattr(error, "lineno", 1)
        raise Mistake(f"{path} is not valid {path.suffix.lstrip('.') or 'YAML'}: see line {line}.") from None
    if not isinstance(values, dict):
        raise Mistake(f"{path} holds no mapping of names to values, so it describes nothing Trimaran knows.")
    return values


def read_text(path: Path) -> str:
    """A text file's content, or a sentence that says why it cannot be read."""
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise Mistake(f"There is no file {path}.") from None
    except IsADirectoryError:
        raise Mistake(f"{path} is a directory, not a file.") from None
    except UnicodeDecodeError:
        raise Mistake(f"{path} is not UTF-8 text.") from None
    except OSError as error:
        raise Mistake(f"{path} cannot be read: {error.strerror}.") from None


def save(noun: Spec, path: Path) -> None:
    write_text(path, noun.to_json() + "\n" if path.suffix == ".json" else noun.to_yaml())


def write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise Mistake(f"{path} cannot be written: {error.strerror}.") from None


def _named(kind: str, name_or_path: str) -> Spec:
    path = Path(name_or_path)
    if path.suffix in SUFFIXES or path.is_file():
        values = expand_preset(kind, read_mapping(path))
        return presets.KINDS[kind].of({"name": path.stem, **values}, f"The {kind[:-1]} {name_or_path}")
    return presets.preset(kind, name_or_path)
