"""Settings: `--set layout.tp=2` on a command line changes a field of a Job by its dotted name."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import ValidationError

from trimaran.spec.auto_dp import resolve_dp
from trimaran.spec.base import Spec
from trimaran.spec.cluster import Cluster
from trimaran.spec.data import expand_source
from trimaran.spec.documents import parse_yaml
from trimaran.spec.files import PARTS, expand_preset, load_job_values
from trimaran.spec.job import Job
from trimaran.spec.layout import Layout
from trimaran.spec.mistake import Mistake, close_names, shortened
from trimaran.spec.model import drop_derived

MOST_SHOWN = 80  # characters of a setting in an error message


def apply_settings(job: Job, settings: Sequence[str]) -> Job:
    """All settings are applied, then the Job is validated once: tp=2 and dp=1 may each be invalid without the other.

    A setting is `field=value`, the value in YAML. Derived fields are derived again: ffn_hidden from hidden, kv_heads
    from heads, and on a CPU machine detected as `here` the devices from the layout.
    """
    return build_job(job.model_dump(), settings, _name_with(job.name, settings))


def load_job_with(name_or_path: str | Path, settings: Sequence[str], devices: int | None = None) -> Job:
    """A job preset or file with settings. `devices`: how many there are for `layout.dp: auto`, if not the cluster's."""
    values = load_job_values(name_or_path)
    return build_job(values, settings, _name_with(values["name"], settings), devices)


def _name_with(name: str, settings: Sequence[str]) -> str:
    listed = ", ".join(setting if len(setting) <= MOST_SHOWN else f"{setting[:MOST_SHOWN]}…" for setting in settings)
    return f"The job {name}" + (f" with {listed}" if settings else "")


def build_job(values: dict[str, Any], settings: Sequence[str], what: str, devices: int | None = None) -> Job:
    """A Job from plain values, which may lack what the settings state."""
    stated: dict[str, set[str]] = {}  # the fields that the settings name, by part of the Job
    for setting in settings:
        (first, *inner), value = _parse(setting)
        if inner:
            stated.setdefault(first, set()).add(inner[0])
        else:
            stated[first] = set(value) if isinstance(value, dict) else set()
            value = _expand(first, value)
        _assign(values, [first, *inner], value)
    if isinstance(values["model"], dict):
        values["model"] = drop_derived(values["model"], stated.get("model", ()))
    values = resolve_dp(values, devices)
    if "devices_per_node" not in stated.get("cluster", ()):
        values["cluster"] = _follow_layout(values["cluster"], values["layout"])
    return Job.of(values, what)


def _parse(setting: str) -> tuple[list[str], Any]:
    """The path of the field and the value as YAML reads it; for a text field `1` and `no` are text."""
    field, equals, text = setting.partition("=")
    names = field.strip().split(".")
    if not equals or not all(names):
        raise Mistake(
            f"{shortened(setting)} is not a setting: give a field of the Job, '=' and its value, such as layout.tp=2."
        )
    path, kind = _field_type(names)
    try:
        value = parse_yaml(text, f"The value of {shortened(setting)}")
    except Mistake:
        if str not in _kinds(kind):
            raise
        value = text
    is_text = kind is str or (str in _kinds(kind) and not isinstance(value, dict | None))
    return path, text if is_text and not isinstance(value, str) else value


def _field_type(names: list[str]) -> tuple[list[str], Any]:
    """The path and the type of a field; below a mapping such as `environment` the rest is one key, dots and all."""
    kind: Any = Job
    for depth, name in enumerate(names):
        mapping = next((each for each in _kinds(kind) if get_origin(each) is dict), None)
        if mapping is not None:
            return [*names[:depth], ".".join(names[depth:])], get_args(mapping)[1]
        part = _spec_class(kind)
        if part is None or name not in part.model_fields:
            raise Mistake(f"There is no {'.'.join(names)[:MOST_SHOWN]} in a Job{_suggest_field(names)}")
        kind = part.model_fields[name].annotation
    return names, kind


def _suggest_field(names: list[str]) -> str:
    """The field of that name in another part of the Job, else the closest match."""
    every = list(_fields(Job))
    close = [field for field in every if field.split(".")[-1] == names[-1]] or close_names(".".join(names), every)
    return f"; did you mean {' or '.join(close[:3])}?" if close else "."


def _fields(part: type[Spec], before: str = "") -> Iterator[str]:
    for name, field in part.model_fields.items():
        yield before + name
        inner = _spec_class(field.annotation)
        if inner is not None:
            yield from _fields(inner, f"{before}{name}.")


def _spec_class(kind: Any) -> type[Spec] | None:
    """The Spec class that a field holds, also where it may be None."""
    return next((each for each in _kinds(kind) if isinstance(each, type) and issubclass(each, Spec)), None)


def _kinds(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _expand(name: str, value: Any) -> Any:
    """A whole part of the Job, as in a Job file: the name of a preset or the path of a dataset is enough."""
    if name == "data":
        return expand_source(value)
    return expand_preset(PARTS[name], value) if name in PARTS else value


def _assign(values: dict[str, Any], path: list[str], value: Any) -> None:
    *outer, last = path
    for name in outer:
        if not isinstance(values.get(name), dict):
            values[name] = {}  # such as a ramp-up where there was none
        values = values[name]
    values[last] = value


def _follow_layout(cluster: Any, layout: Any) -> Any:
    """On a CPU machine the devices are the layout's processes; 4 of them on 2 cores are slow, but run."""
    try:
        asked, machine = Layout.model_validate(layout), Cluster.model_validate(cluster)
    except ValidationError:  # building the Job reports it, with the field's full name
        return cluster
    if machine.is_local_cpu and machine.nodes == 1:
        return machine.with_processes(asked.devices).model_dump()
    return cluster
