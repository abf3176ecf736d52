"""Jobs of every kind that a launch file may have to express, and where two Jobs differ."""

from pathlib import Path
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.spec.strategies import jobs, names
from trimaran.spec import Batch, Job, Mistake, Model, presets

BLOOM = Path(__file__).parents[2] / "examples" / "jobs" / "bloom-176b.yaml"
variables = st.from_regex(r"[A-Z][A-Z_0-9]{2,10}", fullmatch=True).map(lambda name: f"X_{name}")


@st.composite
def launchable(draw: st.DrawFn) -> Job:
    """Possible Jobs with other trainers, precisions, cuts and schedules than `jobs` has, and odd data and variables."""
    job = draw(jobs())
    layout = job.layout.model_dump()
    layout["recompute"] = draw(st.sampled_from(["none", "selective", "full"]))
    layout["sequence_parallel"] = draw(st.booleans())
    layout["schedule"] = draw(st.sampled_from(["1f1b", "1f1b", "gpipe", "interleaved", "zero-bubble"]))
    if layout["schedule"] == "interleaved":
        layout["virtual_stages"] = 2
    stages = layout["pp"] * layout["virtual_stages"]
    layers = job.model.layers * layout["virtual_stages"]
    split = draw(st.sampled_from(["even", "weighted", "listed"]))
    layout["split"] = split if split != "listed" else (layers - stages + 1, *[1] * (stages - 1))
    changes: dict[str, Any] = {
        "layout": layout,
        "model": job.model.replace(
            layers=layers, padded_vocab=draw(st.none() | st.just(job.model.vocab * 8))
        ).model_dump(),
        "trainer": presets.trainer(
            draw(st.sampled_from(["trimaran", "megatron-lm", "megatron-deepspeed-2022"]))
        ).model_dump(),
        "precision": draw(st.sampled_from(["fp32", "bf16", "fp16", "fp8"])),
        "optimizer": draw(st.sampled_from(["adam", "fused-adam", "adam-8bit"])),
        "environment": draw(st.dictionaries(variables | names, names, max_size=2)),
        "steps": draw(st.integers(1, 5000)),
    }
    if draw(st.booleans()):
        changes["data"] = {"source": "synthetic"}
    try:
        return job.replace(**changes)
    except Mistake:
        assume(False)
        raise


def differences(one: Job, other: Job) -> set[str]:
    """Dotted paths of what differs; names of presets and sources of figures are nobody's business here."""
    found = _paths(one.to_dict(), other.to_dict())
    if one.stage_layers == other.stage_layers:
        found.discard("layout.split")  # the same layers in other words
    return {path for path in found if path.split(".")[0] not in ("trainer", "cluster") and path != "model.source"} | (
        {"trainer"} if one.trainer != other.trainer else set()
    )


def _paths(one: Any, other: Any, before: str = "") -> set[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        inner = (_paths(one.get(key), other.get(key), f"{before}{key}.") for key in one.keys() | other.keys())
        return set().union(*inner)
    return set() if one == other else {before[:-1]}


def covered(paths: set[str], lost: set[str]) -> bool:
    return all(any(path == field or path.startswith(f"{field}.") for field in lost) for path in paths)


def llama(model: Model) -> Job:
    """Of that shape on eight devices, as torchtitan would train it."""
    return Job(
        name="a llama",
        model=model,
        cluster=presets.cluster("dgx-h100").replace(nodes=1),
        trainer=presets.trainer("trimaran"),
        layout={"dp": 8, "zero": 3},  # type: ignore[arg-type]
        batch=Batch(size=16),
    )
