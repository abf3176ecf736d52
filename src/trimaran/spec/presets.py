"""Presets: models, clusters, trainers, jobs and sweeps that ship with the package, loaded by name."""

from functools import cache
from importlib.resources import files
from pkgutil import resolve_name
from typing import cast

from trimaran.spec.base import Spec
from trimaran.spec.cluster import HERE as HERE
from trimaran.spec.cluster import Cluster
from trimaran.spec.documents import parse_yaml
from trimaran.spec.mistake import Mistake, did_you_mean
from trimaran.spec.model import Model
from trimaran.spec.trainer import TrainerProfile

KINDS: dict[str, type[Spec]] = {"models": Model, "clusters": Cluster, "trainers": TrainerProfile}
JOBS, SWEEPS = "jobs", "sweeps"  # files that name other presets, which `files.load_job` and `load_sweep` expand
DETECTOR = "trimaran.probe.detect:detect_cluster"  # by name: spec imports no other room


@cache
def names(kind: str) -> tuple[str, ...]:
    folder = files("trimaran") / "presets" / kind
    found = sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    return (*found, HERE) if kind == "clusters" else tuple(found)


@cache
def preset(kind: str, name: str) -> Spec:
    if kind == "clusters" and name == HERE:
        return detect_here()
    return KINDS[kind].of({"name": name, **parse_yaml(text(kind, name), f"The preset {name}")}, f"The preset {name}")


def detect_here() -> Cluster:
    return cast(Cluster, resolve_name(DETECTOR)())


def text(kind: str, name: str) -> str:
    """The content of a preset's file."""
    if name not in names(kind):
        raise Mistake(
            f"There is no preset {name!r} among the {kind}.{did_you_mean(name, names(kind))}"
            " `trimaran presets` lists all."
        )
    return (files("trimaran") / "presets" / kind / f"{name}.yaml").read_text("utf-8")


def description(kind: str, name: str) -> str:
    """The comment at the top of a job or sweep preset; loading the Job could mean measuring this machine."""
    return text(kind, name).partition("\n")[0].lstrip("# ")


def model(name: str) -> Model:
    return cast(Model, preset("models", name))


def cluster(name: str) -> Cluster:
    return cast(Cluster, preset("clusters", name))


def trainer(name: str) -> TrainerProfile:
    return cast(TrainerProfile, preset("trainers", name))
