"""YAML and JSON files: a Job or a part of it, where any part may be the name of a preset, or a preset with changes."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from trimaran.spec import presets
from trimaran.spec.auto_dp import AUTO, is_auto, resolve_dp
from trimaran.spec.base import Spec
from trimaran.spec.cluster import Cluster
from trimaran.spec.documents import MOST_CHARACTERS, parse_json, parse_yaml
from trimaran.spec.job import Job
from trimaran.spec.mistake import Mistake, did_you_mean, shortened
from trimaran.spec.model import Model, drop_derived
from trimaran.spec.sweep import Sweep
from trimaran.spec.trainer import TrainerProfile

PARTS = {"model": "models", "cluster": "clusters", "trainer": "trainers"}
SUFFIXES = (".yaml", ".yml", ".json")


def load_job(name_or_path: str | Path) -> Job:
    """A job preset or file; `model: bloom-176b` and `cluster: {preset: fugaku, nodes: 192}` both work in a file."""
    return _build_job(*_read_preset_or_file(presets.JOBS, name_or_path))


def load_job_values(name_or_path: str | Path) -> dict[str, Any]:
    """All values of such a Job, for changes to them; where its file says `layout.dp: auto` they still do."""
    read = _read_preset_or_file(presets.JOBS, name_or_path)
    values = _build_job(*read).model_dump()
    if is_auto(read[0]):  # the Job has a number, and a cluster reduced to it
        values["layout"]["dp"], values["cluster"] = AUTO, expand_preset(PARTS["cluster"], read[0]["cluster"])
    return values


def load_sweep(name_or_path: str | Path) -> Sweep:
    """A sweep preset or file, whose `base` is a Job, or the name of a job preset or file."""
    values, name, what = _read_preset_or_file(presets.SWEEPS, name_or_path)
    base = values.get("base", {})
    if not isinstance(base, str | dict):
        raise Mistake(
            f"{what}: base is {shortened(base)}, but must be a Job, or the name of a job preset or file such as tiny."
        )
    job = load_job(base) if isinstance(base, str) else _build_job(base, name, f"{what}, its base")
    return Sweep.of({"name": name, **values, "base": job.model_dump()}, what)


def _read_preset_or_file(kind: str, name_or_path: str | Path) -> tuple[dict[str, Any], str, str]:
    """Its values, its name, and what error messages call it. A file precedes a preset of the same name."""
    name, path, noun = str(name_or_path), Path(name_or_path), kind[:-1]
    if name in presets.names(kind) and not path.is_file():
        return parse_yaml(presets.text(kind, name), f"The preset {name}"), name, f"The preset {name}"
    if not path.exists() and path.suffix not in SUFFIXES and path.name == name:
        near = did_you_mean(name, presets.names(kind))
        raise Mistake(f"There is no file {name}, and no {noun} preset of that name.{near}")
    return read_mapping(path), path.stem, f"The {noun} file {path}"


def is_job_preset(name: str) -> bool:
    """Whether it names a job preset; a file of that name takes precedence, as with models."""
    return name in presets.names(presets.JOBS) and not Path(name).is_file()


def _build_job(values: Mapping[str, Any], name: str, what: str) -> Job:
    expanded = {key: expand_preset(PARTS[key], value) if key in PARTS else value for key, value in values.items()}
    expanded.setdefault("name", name)
    expanded.setdefault("trainer", presets.trainer("trimaran").model_dump())
    return Job.of(resolve_dp(expanded), what)


def load_model(name_or_path: str) -> Model:
    """The name of a preset, or the path of a YAML or JSON file."""
    return cast(Model, _load("models", name_or_path))


def load_cluster(name_or_path: str) -> Cluster:
    return cast(Cluster, _load("clusters", name_or_path))


def load_trainer(name_or_path: str) -> TrainerProfile:
    return cast(TrainerProfile, _load("trainers", name_or_path))


def expand_preset(kind: str, value: Any) -> Any:
    """The name of a preset or file, or a mapping with such a name as `preset` and changes to it, becomes a mapping of
    all fields; other values stay as they are."""
    if isinstance(value, str):
        return _load(kind, value).model_dump()
    if isinstance(value, Mapping) and "preset" in value:
        changes = {key: item for key, item in value.items() if key != "preset"}
        base = _load(kind, str(value["preset"]))
        devices = changes.get("devices_per_node")
        if isinstance(base, Cluster) and base.is_local_cpu and isinstance(devices, int) and devices > 0:
            base = base.with_processes(devices)
        return {**drop_derived(base.model_dump(), changes), **changes}
    return value


def read_mapping(path: Path) -> dict[str, Any]:
    parse = parse_json if path.suffix == ".json" else parse_yaml
    values = parse(read_text(path, MOST_CHARACTERS + 1), str(path))
    if not isinstance(values, dict):
        raise Mistake(f"{path} does not hold a mapping of names to values.")
    return values


def read_text(path: Path, most: int = -1) -> str:
    """The content of a text file, or its first characters, or a Mistake that says why it cannot be read."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            return file.read(most)
    except FileNotFoundError:
        raise Mistake(f"There is no file {path}.") from None
    except IsADirectoryError:
        raise Mistake(f"{path} is a directory, not a file.") from None
    except UnicodeDecodeError:
        raise Mistake(f"{path} is not UTF-8 text.") from None
    except ValueError:  # a NUL in its name
        raise Mistake(f"{str(path)!r} is not the name of a file.") from None
    except OSError as error:
        raise Mistake(f"{path} cannot be read: {error.strerror}.") from None


def save(spec: Spec, path: Path) -> None:
    write_text(path, spec.to_json() + "\n" if path.suffix == ".json" else spec.to_yaml())


def check_folder_of(path: Path) -> None:
    """A Mistake before minutes of work whose result could not be written."""
    if not path.parent.is_dir():
        raise Mistake(f"{path} cannot be written: there is no folder {path.parent}.")


def write_text(path: Path, text: str) -> None:
    """A reader, or a crash in between, finds the old file or the new one, never half of it."""
    write_files({path: text.encode()})


def write_files(contents: Mapping[Path, bytes]) -> None:
    """The same for several files: none is replaced before the disk has taken all of them."""
    staged: dict[Path, Path] = {}
    path = Path()
    try:
        for path, content in contents.items():
            if "\0" in str(path):
                raise Mistake(f"{str(path)!r} is not the name of a file.")
            target = path.resolve()  # a link is kept, and what it names replaced
            if target.exists() and not target.is_file():  # such as /dev/stdout
                target.write_bytes(content)
                continue
            temporary = staged[target] = target.with_name(f".{target.name}.{os.getpid()}")
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # some file systems (NFS, quotas) say only now that they are full
        for path, temporary in staged.items():
            os.replace(temporary, path)
    except OSError as error:
        raise Mistake(f"{path} cannot be written: {error.strerror}.") from None
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


def sync_to_disk(path: Path) -> None:
    """fsync of a file, or of a folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _load(kind: str, name_or_path: str) -> Spec:
    path = Path(name_or_path)
    if path.suffix in SUFFIXES or path.is_file():
        values = expand_preset(kind, read_mapping(path))
        return presets.KINDS[kind].of({"name": path.stem, **values}, f"The {kind[:-1]} {name_or_path}")
    return presets.preset(kind, name_or_path)
