"""Changes by dotted names: `layout.tp=2` on a command line makes a new Job of one that exists."""

from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import ValidationError

from trimaran.spec.base import Spec
from trimaran.spec.cluster import Cluster
from trimaran.spec.data import expand_source
from trimaran.spec.files import PARTS, expand_preset
from trimaran.spec.job import Job
from trimaran.spec.layout import Layout
from trimaran.spec.mistake import Mistake, close_names
from trimaran.spec.model import drop_derived


def apply_settings(job: Job, settings: Sequence[str]) -> Job:
    """The Job with every setting made, then checked once: tp=2 and dp=1 may each be impossible without the other.

    A setting is `field=value`, the value in YAML. What follows from a changed field follows here too: ffn_hidden from
    hidden, kv_heads from heads, and on a CPU machine detected as `here` the devices from the layout.
    """
    what = " with ".join([f"The job {job.name}", *([", ".join(settings)] if settings else [])])
    return build_job(job.model_dump(), settings, what)


def build_job(values: dict[str, Any], settings: Sequence[str], what: str) -> Job:
    """A Job of plain values and settings; values that the settings bring may be missing before."""
    stated: dict[str, set[str]] = {}  # which fields of each noun the settings name
    for setting in settings:
        (first, *inner), value = _read(setting)
        if inner:
            stated.setdefault(first, set()).add(inner[0])
        else:
            stated[first] = set(value) if isinstance(value, dict) else set()
            value = _whole(first, value)
        _place(values, [first, *inner], value)
    if isinstance(values["model"], dict):
        values["model"] = drop_derived(values["model"], stated.get("model", ()))
    if "devices_per_node" not in stated.get("cluster", ()):
        values["cluster"] = _following(values["cluster"], values["layout"])
    return Job.of(values, what)


def _read(setting: str) -> tuple[list[str], Any]:
    """The path of the field and the value, as YAML reads it; where words are wanted, `1` and `no` are words too."""
    field, equals, text = setting.partition("=")
    names = field.strip().split(".")
    if not equals or not all(names):
        raise Mistake(f"{setting!r} is no setting: give a field of the Job, '=' and its value, such as layout.tp=2.")
    path, kind = _known(names)
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # the latter: a date that does not exist
        if str not in _kinds(kind):
            raise Mistake(
                f"The value of {setting!r} is not valid YAML; a list is [1, 2], a mapping {{a: 1}}."
            ) from None
        value = text
    words = kind is str or (str in _kinds(kind) and not isinstance(value, dict | None))
    return path, text if words and not isinstance(value, str) else value


def _known(names: list[str]) -> tuple[list[str], Any]:
    """The path and the type of a field; below a mapping such as `environment` the rest is one key, dots and all."""
    kind: Any = Job
    for depth, name in enumerate(names):
        mapping = next((each for each in _kinds(kind) if get_origin(each) is dict), None)
        if mapping is not None:
            return [*names[:depth], ".".join(names[depth:])], get_args(mapping)[1]
        noun = _noun(kind)
        if noun is None or name not in noun.model_fields:
            raise Mistake(f"There is no {'.'.join(names)} in a Job{_meant(names)}")
        kind = noun.model_fields[name].annotation
    return names, kind


def _meant(names: list[str]) -> str:
    """The field of that name in another noun, else the one most like it."""
    every = list(_fields(Job))
    near = [field for field in every if field.split(".")[-1] == names[-1]] or close_names(".".join(names), every)
    return f"; did you mean {' or '.join(near[:3])}?" if near else "."


def _fields(noun: type[Spec], before: str = "") -> Iterator[str]:
    for name, field in noun.model_fields.items():
        yield before + name
        inner = _noun(field.annotation)
        if inner is not None:
            yield from _fields(inner, f"{before}{name}.")


def _noun(kind: Any) -> type[Spec] | None:
    """The noun that a field holds, also where it may be None."""
    return next((each for each in _kinds(kind) if isinstance(each, type) and issubclass(each, Spec)), None)


def _kinds(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _whole(name: str, value: Any) -> Any:
    """A whole noun is read as in a Job file, where a preset's name or a data set's path is enough."""
    if name == "data":
        return expand_source(value)
    return expand_preset(PARTS[name], value) if name in PARTS else value


def _place(values: dict[str, Any], path: list[str], value: Any) -> None:
    *outer, last = path
    for name in outer:
        if not isinstance(values.get(name), dict):
            values[name] = {}  # such as a ramp-up that was not there
        values = values[name]
    values[last] = value


def _following(cluster: Any, layout: Any) -> Any:
    """On a CPU machine the devices are the layout's processes; 4 of them on 2 cores are slow, but can be tried."""
    try:
        asked, machine = Layout.model_validate(layout), Cluster.model_validate(cluster)
    except ValidationError:  # the Job will say it, with the field's whole name
        return cluster
    return (
        machine.with_processes(asked.devices).model_dump() if machine.is_local_cpu and machine.nodes == 1 else cluster
    )
