"""A Job as torchtitan's files: its own configuration takes them, and reading them gives the Job back."""

import json
import math
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import field, make_dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.export.launchable import BLOOM, llama
from tests.spec.strategies import jobs, models
from trimaran.export.partial_job import complete_job
from trimaran.export.torchtitan.keys import CHOICES, DEFAULTS
from trimaran.export.torchtitan.read import from_torchtitan
from trimaran.export.torchtitan.write import to_torchtitan
from trimaran.spec import Batch, Cluster, Job, Mistake, Model, Ramp, Recipe, presets
from trimaran.spec.files import load_job

FIXTURES = Path(__file__).parent / "fixtures" / "torchtitan"
SCHEMA = json.loads((FIXTURES / "schema.json").read_text())  # of torchtitan v0.2.2, see the README beside it
WHOLE = ("batch.ramp", "recipe.loss_scale", "environment", "data.source")  # compared as one thing
WORDS = ("trainer", "cluster", "model.source")  # the trainer is another, the cluster given, the source a remark


@st.composite
def layouts(draw: st.DrawFn) -> Job:
    """Jobs of our own trainer with every kind of layout, precision and optimizer."""
    job = draw(jobs())
    layout, model = job.layout.model_dump(), job.model.model_dump()
    pp, count = layout["pp"], job.micro_batches
    ramp, precision = job.batch.ramp, draw(st.sampled_from([*job.cluster.device.peak_tflops]))
    if precision == "fp8":  # our sides are multiples of 16
        model |= {"hidden": 16 * model["heads"], "ffn_hidden": 16 * model["ffn_hidden"]}
    schedules = ["1f1b", "gpipe"]
    if count % max(1, count // pp) == 0:
        schedules += ["zero-bubble"] + ["interleaved"] * (pp > 1)
    schedule = draw(st.sampled_from(schedules))
    layout |= {"schedule": schedule, "sequence_parallel": draw(st.booleans())}
    if schedule in ("zero-bubble", "interleaved"):
        ramp = None
    if schedule == "zero-bubble":
        layout["zero"] = draw(st.sampled_from([0, 1, 2]))
    else:
        layout["recompute"] = draw(st.sampled_from(["none", "selective", "full"]))
    if schedule == "interleaved":
        layout["virtual_stages"] = draw(st.integers(2, 3))
    stages = pp * layout["virtual_stages"]
    parts = draw(st.lists(st.integers(1, 5), min_size=stages, max_size=stages))
    layout["split"] = draw(st.sampled_from(["even", "weighted", tuple(parts)]))
    model["layers"] = sum(parts) if isinstance(layout["split"], tuple) else stages * draw(st.integers(2, 4))
    if draw(st.booleans()):
        model["padded_vocab"] = -(-model["vocab"] // layout["tp"]) * layout["tp"]
    lowest = job.recipe.learning_rate * draw(st.floats(0, 1))
    return job.replace(
        layout=layout,
        model=model,
        batch={"size": job.batch.size, "ramp": ramp},
        precision=precision,
        optimizer=draw(st.sampled_from(["adam", "fused-adam", "adam-8bit"])),
        recipe={**job.recipe.model_dump(), "minimum_learning_rate": lowest},
        steps=draw(st.integers(1, 200)),
    )


def exported(job: Job) -> tuple[dict[str, str], set[str]]:
    result = to_torchtitan(job)
    return result.files, {each.field for each in result.unsupported}


def read_back(text: str, cluster: Cluster) -> Job:
    return complete_job(from_torchtitan(text, "train.toml"), cluster, None, "unnamed")


def flat(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        path = f"{before}{name}"
        if isinstance(value, dict) and path not in (*WHOLE, *WORDS):
            yield from flat(value, f"{path}.")
        else:
            yield path, value


def differing(one: Job, other: Job) -> set[str]:
    """Fields with another value; a split is its layers, and a share of the learning rate is not exact to the bit."""
    first, second = ({**dict(flat(job.model_dump())), "layout.split": job.stage_layers} for job in (one, other))
    lowest = "recipe.minimum_learning_rate"
    if math.isclose(first[lowest], second[lowest], rel_tol=1e-14):
        first[lowest] = second[lowest]
    return {path for path in first if path not in WORDS and first[path] != second[path]}


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(job=layouts())
def test_only_the_replaced_fields_differ_after_a_round_trip(job: Job) -> None:
    files, told = exported(job)
    back = read_back(files["train.toml"], job.cluster)
    unchanged = {"trainer", "trainer.master_bytes"} | ({"data.source"} if job.data.source == "synthetic" else set())
    assert differing(job, back) == told - unchanged
    assert back.cluster == job.cluster
    assert back.trainer == presets.trainer("torchtitan")


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(job=layouts())
def test_a_second_round_trip_changes_nothing(job: Job) -> None:
    """Exporting what was read back replaces nothing more, except the data source."""
    back = read_back(to_torchtitan(job).files["train.toml"], job.cluster)
    files, told = exported(back)
    assert told <= {"data.source", "trainer.master_bytes"}
    assert differing(back, read_back(files["train.toml"], job.cluster)) == set()


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(job=layouts())
def test_every_key_is_torchtitans_own_with_a_value_of_its_type(job: Job) -> None:
    """Its configuration refuses keys it does not know; types and choices are those of its source."""
    values = dict(flat(tomllib.loads(to_torchtitan(job).files["train.toml"])))
    own = {key: value for key, value in values.items() if not key.startswith("shape.")}
    assert own.keys() <= SCHEMA["keys"].keys()
    for key, value in own.items():
        kind = eval(SCHEMA["keys"][key]["type"], {"Literal": Literal})  # such as `int | None`
        TypeAdapter(kind).validate_python(value, strict=True)


def test_keys_that_a_file_leaves_out_have_torchtitans_defaults() -> None:
    assert {key: SCHEMA["keys"][key]["default"] for key in DEFAULTS} == DEFAULTS
    for key, choices in CHOICES.items():
        assert eval(SCHEMA["keys"][key]["type"], {"Literal": Literal}) == Literal[choices]


# --- shapes


def titan_shape(args: dict[str, Any]) -> dict[str, Any]:
    """A flavour's shape; the width of the MLP by the formula in torchtitan/models/llama3/model/model.py."""
    args = {**SCHEMA["flavour_defaults"], **args}
    width = int(2 * (4 * args["dim"]) / 3)
    if args["ffn_dim_multiplier"] is not None:
        width = int(args["ffn_dim_multiplier"] * width)
    multiple = args["multiple_of"]
    return {
        "layers": args["n_layers"],
        "hidden": args["dim"],
        "heads": args["n_heads"],
        "kv_heads": args["n_kv_heads"] or args["n_heads"],
        "ffn_hidden": multiple * ((width + multiple - 1) // multiple),
        "vocab": args["vocab_size"],
        "rotary_base": args["rope_theta"],
    }


@pytest.mark.parametrize("flavour", SCHEMA["flavours"])
def test_every_flavour_of_torchtitan_is_read_with_its_shape(flavour: str) -> None:
    args = SCHEMA["flavours"][flavour]
    found = from_torchtitan(f'[model]\nname = "llama3"\nflavor = "{flavour}"\n', "train.toml").values
    shape = titan_shape(args)
    assert {name: found["model"][name] for name in shape} == shape
    assert found["data"] == {"documents": "apart" if args.get("attn_mask_type") == "block_causal" else "joined"}


@pytest.mark.parametrize(("preset", "flavour"), [("llama3-8b", "8B"), ("llama3-70b", "70B"), ("llama3-405b", "405B")])
def test_a_shape_that_torchtitan_ships_needs_no_module(preset: str, flavour: str) -> None:
    job = llama(presets.model(preset).replace(seq_len=4096))
    files, _ = exported(job)
    values = tomllib.loads(files["train.toml"])
    assert (values["model"]["name"], values["model"]["flavor"]) == ("llama3", flavour)
    assert files.keys() == {"train.toml", "run.sh", "train.slurm"}
    assert read_back(files["train.toml"], job.cluster).model == job.model


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=models())
def test_the_module_gives_torchtitan_exactly_the_jobs_shape(monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
    files = to_torchtitan(llama(model.replace(layers=2))).files
    stated = tomllib.loads(files["train.toml"])
    registered = run_module(files["llama3_shaped.py"], monkeypatch)
    spec, config = registered[stated["model"]["name"]]
    args = spec.model_args[stated["model"]["flavor"]]
    args.update_from_config(SimpleNamespace(shape=type(config().shape)(**stated["shape"])))
    shape = titan_shape(vars(args))
    assert shape == {name: getattr(model.replace(layers=2), name) for name in shape}
    assert args.rope_scaling_args.scaling_factor == 1.0  # a Job's rotary angles are not stretched


def run_module(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, Any]]:
    """Runs it with stand-ins for what it imports: torchtitan needs packages that only a machine with a GPU has."""
    defaults = [(name, Any, field(default=value)) for name, value in SCHEMA["flavour_defaults"].items()]
    scaling = make_dataclass("RoPEScalingArgs", [("scaling_factor", float, field(default=8.0))])
    args = make_dataclass(
        "TransformerModelArgs",
        [*defaults, ("rope_scaling_args", Any, field(default_factory=scaling))],
        namespace={"update_from_config": lambda self, job_config: None},
    )
    spec = make_dataclass("TrainSpec", ["model_args"])
    registered: dict[str, Any] = {}
    names = {
        "torchtitan.models.llama3": {"TransformerModelArgs": args, "get_train_spec": lambda: spec({})},
        "torchtitan.models.llama3.model.args": {"RoPEScalingArgs": scaling},
        "torchtitan.protocols.train_spec": {"register_train_spec": registered.__setitem__},
    }
    with monkeypatch.context() as patch:
        for name in ("torchtitan", "torchtitan.models", "torchtitan.models.llama3.model", "torchtitan.protocols"):
            patch.setitem(sys.modules, name, ModuleType(name))
        for name, members in names.items():
            module = ModuleType(name)
            vars(module).update(members)
            patch.setitem(sys.modules, name, module)
        beside = ModuleType("llama3_shaped")
        patch.setitem(sys.modules, beside.__name__, beside)  # where a dataclass looks for its own module
        exec(text, vars(beside))
    return {name: (each, vars(beside)["JobConfig"]) for name, each in registered.items()}


# --- the learning rate


@settings(max_examples=100)
@given(
    schedule=st.sampled_from(["constant", "linear", "cosine"]),
    warmup=st.integers(0, 20),
    steps=st.integers(1, 20),
    later=st.integers(0, 5),
    share=st.floats(0, 1),
)
def test_the_learning_rate_is_the_jobs_with_the_decay_one_step_later(
    schedule: Any, warmup: int, steps: int, later: int, share: float
) -> None:
    job = llama(presets.model("llama3-8b"))
    size, end = job.batch.size, max(steps + later, warmup)
    recipe = Recipe(
        learning_rate=1e-3,
        warmup_samples=warmup * size,
        schedule=schedule,
        decay_samples=end * size,
        minimum_learning_rate=1e-3 * share,
    )
    stated = tomllib.loads(to_torchtitan(job.replace(recipe=recipe, steps=steps)).files["train.toml"])["lr_scheduler"]
    for step in range(1, steps + 1):
        risen = step <= warmup or schedule == "constant"
        expected = recipe.rate_at((step if risen else max(step - 1, warmup)) * size, end * size)
        assert 1e-3 * titan_factor(step - 1, steps, stated) == pytest.approx(expected)


def titan_factor(step: int, steps: int, stated: dict[str, Any]) -> float:
    """The multiplier of torchtitan/components/lr_scheduler.py for a step counted from 0."""
    total = stated.get("total_steps", steps)
    warmup = min(stated["warmup_steps"], total)
    ratio = stated.get("decay_ratio")
    falling = total - warmup if ratio is None else min(round(total * ratio), total - warmup)
    plateau = total + 1 - falling
    if step < warmup:
        return (step + 1) / warmup
    if step < plateau:
        return 1.0
    done = (step + 1 - plateau) / falling
    left = 1 - done if stated["decay_type"] == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    least = float(stated["min_lr_factor"])
    return least + (1 - least) * left


# --- what it cannot express, and mistakes


def test_every_replaced_field_of_bloom_is_reported() -> None:
    told = {each.field: each.why for each in to_torchtitan(load_job(BLOOM)).unsupported}
    assert told.keys() == {
        "trainer",
        *(f"model.{name}" for name in ("mlp", "norm", "position", "bias", "embedding_norm", "tied_embeddings")),
        "layout.zero",
        "layout.sequence_parallel",
        "batch.ramp",
        "recipe.undecayed",
        "data.source",
    }
    assert all(why.endswith(".") for why in told.values())


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"precision": "fp16"}, {"precision"}),
        ({"optimizer": "adam-8bit"}, {"optimizer"}),
        ({"layout": {"dp": 8, "zero": 1}}, {"layout.zero"}),
        ({"layout": {"dp": 8, "zero": 0}}, set()),
        ({"layout": {"dp": 4, "tp": 2, "sequence_parallel": True}}, {"layout.zero"}),
        ({"layout": {"tp": 8, "sequence_parallel": True}}, {"trainer.master_bytes"}),
        ({"batch": Batch(size=16, ramp=Ramp(start=8, increment=8, samples=64))}, {"batch.ramp"}),
        ({"recipe": Recipe(clip=None)}, set()),
        ({"recipe": Recipe(schedule="cosine", warmup_samples=24)}, {"recipe.warmup_samples"}),
        ({"recipe": Recipe(schedule="cosine", decay_samples=48)}, {"recipe.decay_samples"}),
        ({"saving": {"folder": "kept", "every": 5, "asynchronous": True}}, set()),
        (
            {"saving": {"folder": "kept", "minutes": 30, "keep": 1}},
            {f"saving.{n}" for n in ("every", "minutes", "keep")},
        ),
        ({"validation": {"every": 2, "samples": 64}}, set()),
        ({"validation": {"every": 2, "samples": 65}}, {"validation.samples"}),
        ({"environment": {"NCCL_DEBUG": "WARN"}}, {"environment"}),
        ({"data": {"documents": "apart"}}, set()),
    ],
)
def test_each_replaced_field_is_reported(changes: dict[str, Any], fields: set[str]) -> None:
    _, told = exported(llama(presets.model("llama3-8b")).replace(**changes))
    assert told - {"trainer", "data.source", "recipe.undecayed"} == fields


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[model\n", "not valid TOML"),
        ("[tool.ruff]\nline-length = 120\n", "none of torchtitan's sections"),
        ('[training]\nsteps = "many"\n', "training.steps is 'many'"),
        ("[training]\nlocal_batch_size = 0\n", "must be at least 1"),
        ('[activation_checkpoint]\nmode = "some"\n[model]\nflavor = "8B"\n', "selective, full, memory_budget, none"),
        ("[parallelism]\ncontext_parallel_degree = 2\n", "context parallelism"),
        ('[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "DualPipeV"\n', "'DualPipeV'"),
    ],
)
def test_a_file_that_cannot_be_read_gets_a_sentence(text: str, said: str) -> None:
    with pytest.raises(Mistake, match=said):
        from_torchtitan(text, "train.toml")


def test_a_shape_that_torchtitan_cannot_have_gets_a_sentence() -> None:
    odd = presets.model("gpt-1b3").replace(hidden=33, heads=11, kv_heads=11, ffn_hidden=64)
    with pytest.raises(Mistake, match="rotary positions rotate pairs of channels, but head_dim is 3"):
        to_torchtitan(llama(odd))
