"""The physics of seconds and bytes: properties that must hold, and one small case worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.cost.columns import Columns, columns_of, model_columns
from trimaran.cost.constants import Constants, constants_of
from trimaran.cost.memory import GIB, memory, stage_memory
from trimaran.cost.predict import interval, predict
from trimaran.cost.time import Machine, reduction_seconds, step_time, tensor_parallel_seconds
from trimaran.spec import Batch, Cluster, Job, Layout, Model, TrainerProfile, presets

CLUSTER = presets.cluster("jean-zay-a100-80gb")
TRAINER = presets.trainer("megatron-deepspeed-2022")


def columns(**changes: object) -> Columns:
    """The published 181B layout: DP 8, TP 4, PP 12, micro batch 4."""
    return Columns(
        **{
            **model_columns(presets.model("gpt-181b")),
            "dp": 8.0,
            "tp": 4.0,
            "pp": 12.0,
            "virtual": 1.0,
            "mbs": 4.0,
            "gbs": 2048.0,
            "zero": 1,
            "recompute": 2,
            "schedule": 1,
            "sequence_parallel": False,
            "weighted": False,
            "devices_per_node": 8,
            "precision": "fp16",
            **changes,
        }
    )


def fullest(c: Columns) -> float:
    return float(memory(c, CLUSTER, TRAINER).fullest_gib)


layouts = st.fixed_dictionaries(
    {
        "dp": st.sampled_from([1.0, 2.0, 4.0, 8.0, 16.0]),
        "tp": st.sampled_from([1.0, 2.0, 4.0, 8.0]),
        "pp": st.sampled_from([1.0, 2.0, 6.0, 12.0]),
        "mbs": st.sampled_from([1.0, 2.0, 4.0]),
        "zero": st.sampled_from([0, 1, 2, 3]),
        "recompute": st.sampled_from([0, 1, 2]),
    }
)


@given(layouts)
def test_memory_falls_with_dp_under_zero_and_rises_with_the_micro_batch(layout: dict[str, float]) -> None:
    c = columns(**layout)
    more = fullest(replace(c, dp=c.dp * 2, gbs=c.gbs * 2))
    assert more <= fullest(c) if layout["zero"] else more == fullest(c)
    assert fullest(replace(c, mbs=c.mbs * 2, gbs=c.gbs * 2)) > fullest(c)


@given(layouts)
def test_recompute_trades_memory_for_time(layout: dict[str, float]) -> None:
    none, selective, full = (columns(**{**layout, "recompute": kind}) for kind in (0, 1, 2))
    times = [float(step_time(c, CLUSTER, TRAINER).seconds) for c in (none, selective, full)]
    kept = [float(stage_memory(c, CLUSTER, TRAINER, "first").activations) for c in (none, selective, full)]
    assert times == sorted(times)
    assert kept == sorted(kept, reverse=True)


@given(layouts)
def test_time_per_sample_falls_as_the_bubble_shrinks(layout: dict[str, float]) -> None:
    c = columns(**layout)
    few, many = replace(c, gbs=c.dp * c.mbs * 4), replace(c, gbs=c.dp * c.mbs * 64)
    assert step_time(many, CLUSTER, TRAINER).seconds / 64 <= step_time(few, CLUSTER, TRAINER).seconds / 4
    if layout["pp"] > 1:
        assert step_time(many, CLUSTER, TRAINER).bubble < step_time(few, CLUSTER, TRAINER).bubble


@settings(max_examples=50)
@given(layouts, st.sampled_from(["inside", "between", "memory_gb_per_s"]))
def test_doubling_a_bandwidth_never_slows(layout: dict[str, float], what: str) -> None:
    def faster(cluster: Cluster) -> Cluster:
        if what == "memory_gb_per_s":
            device = cluster.device.replace(memory_gb_per_s=2 * cluster.device.memory_gb_per_s)
            return cluster.replace(device=device.model_dump())
        link = getattr(cluster, what)
        return cluster.replace(**{what: link.replace(gb_per_s=2 * link.gb_per_s).model_dump()})

    c = columns(**layout)
    assert step_time(c, faster(CLUSTER), TRAINER).seconds <= step_time(c, CLUSTER, TRAINER).seconds


def test_without_peers_there_is_no_traffic() -> None:
    machine = Machine(CLUSTER, TRAINER, "fp16")
    assert tensor_parallel_seconds(machine, columns(tp=1.0)) == 0
    assert reduction_seconds(machine, columns(dp=1.0)) == 0
    assert step_time(columns(pp=1.0), CLUSTER, TRAINER).bubble == 0


def test_one_layout_and_a_column_of_them_give_the_same() -> None:
    mbs = np.array([1.0, 2.0, 4.0, 8.0])
    together = predict(columns(mbs=mbs), CLUSTER, TRAINER)
    alone = [predict(columns(mbs=float(m)), CLUSTER, TRAINER) for m in mbs]
    assert together.seconds.tolist() == pytest.approx([float(p.seconds) for p in alone])
    assert together.memory_gib.tolist() == pytest.approx([float(p.memory_gib) for p in alone])


# --- a case small enough for a pencil

IDEAL = Constants(
    gemm_efficiency=1.0,
    sustained_efficiency=1e9,
    gemm_half_tokens=0.0,
    gemm_half_width=0.0,
    wave_exponent=0.0,
    misaligned_slowdown=1.0,
    attention_efficiency=1.0,
    flash_efficiency=1.0,
    odd_head_slowdown=1.0,
    memory_efficiency=1.0,
    kernel_us=0.0,
    layer_us=0.0,
    micro_batch_ms=0.0,
    inside_share=1.0,
    collective_us=0.0,
    between_share=1.0,
    reduction_share=1.0,
    reduction_ms=0.0,
    pressure_slowdown=0.0,
    state_share=1.0,
    activation_share=1.0,
    buffer_share=1.0,
)
TINY = Model(layers=4, hidden=1024, heads=8, vocab=1024, seq_len=512)


def tiny(**changes: object) -> Columns:
    return columns(
        **{**model_columns(TINY), "dp": 2.0, "tp": 2.0, "pp": 2.0, "mbs": 1.0, "gbs": 8.0, "recompute": 0, **changes}
    )


def test_the_parts_of_a_step_by_hand() -> None:
    """l 4, h 1024, s 512, V 1024, TP 2, PP 2, DP 2, one sample a micro batch, 4 of them; an A100 without any loss."""
    found = step_time(tiny(), CLUSTER, TRAINER, IDEAL)
    tokens, h, peak, memory = 512, 1024, 312e12, 2039e9
    gemm = 3 * 2 * tokens * 12 * h * h / 2 / peak  # forward and twice backward, halved by TP
    attention = 3 * 4 * tokens * 512 * h / 2 / peak
    softmax = 8 / 2 * 512**2 * (11 + 16) / memory  # 4 heads a rank
    elementwise = 3 * tokens * h * (20 + 28 / 2) / memory
    assert found.layer_compute == pytest.approx(gemm + attention + softmax + elementwise)
    assert found.layer_tensor_parallel == pytest.approx(4 * (2 * 1 / 2 * tokens * h * 2) / 232e9)
    head = 3 * 2 * tokens * (1024 / 2) * h / peak + tokens * 512 * 26 / memory
    assert found.head == pytest.approx(head)
    # dp 2 x tp 2 fill half a node of 8, so the next stage is inside it: 1 MiB there and 1 MiB back
    assert found.transfer == pytest.approx(2 * (tokens * h * 2 / 232e9 + 10e-6))
    stage = 2 * (found.layer_compute + found.layer_tensor_parallel) + found.transfer
    assert found.first_stage == pytest.approx(stage)
    assert found.last_stage == pytest.approx(stage + head)
    parameters = (2 * 12 * h * h + 1024 * h) / 2
    reduction = (1 / 2) * (2 + 2) * parameters / 232e9  # half of gradients out, half of weights in, inside the node
    optimizer = parameters * (28 / 2 + 6) / memory
    step = 4 * (stage + head) + stage + reduction + optimizer  # four micro batches, and the first stage's to fill
    assert found.seconds == pytest.approx(step)


def test_a_power_limit_lasts_as_long_as_the_flops_it_allows() -> None:
    """At a hundredth of the peak nothing else counts; at four times the peak, the prior, it is not felt."""
    tokens, h, peak = 512, 1024, 312e12
    gemms, attention = 2 * tokens * 12 * h * h / 2, 4 * tokens * 512 * h / 2
    seconds = (3 * gemms + 3.5 * 0.8 * attention) / peak
    limited = step_time(tiny(), CLUSTER, TRAINER, IDEAL.replace(sustained_efficiency=0.01))
    assert limited.layer_compute == pytest.approx(100 * seconds, rel=1e-6)
    free, hardly = (step_time(tiny(), CLUSTER, TRAINER, IDEAL.replace(sustained_efficiency=x)) for x in (1e9, 4.0))
    assert hardly.layer_compute == pytest.approx(free.layer_compute, rel=1e-4)


def test_gradients_of_several_micro_batches_are_added_up_in_passes_of_their_own() -> None:
    """By a trainer that says so: 10 bytes per parameter for each of four micro batches, none for one."""
    adding = TRAINER.model_copy(update={"accumulation_bytes": 10.0})
    for samples, passes in ((8.0, 4), (2.0, 0)):
        plain, summing = (step_time(tiny(gbs=samples), CLUSTER, trainer, IDEAL) for trainer in (TRAINER, adding))
        parameters = (2 * 12 * 1024**2 + 1024 * 1024) / 2
        assert summing.seconds - plain.seconds == pytest.approx(passes * 10 * parameters / 2039e9, abs=1e-12)


def test_the_parts_of_memory_by_hand() -> None:
    found = stage_memory(tiny(), CLUSTER, TRAINER, "first", IDEAL)
    tokens, h = 512, 1024
    parameters = (2 * 12 * h * h + 1024 * h) / 2
    assert found.weights == pytest.approx(2 * parameters)
    assert found.gradients == pytest.approx(2 * parameters)
    assert found.optimizer == pytest.approx((8 + 4 + 6) / 2 * parameters)  # moments, master, its extra; over dp 2
    layer = tokens * h * (10 + 24 / 2) + 5 * 8 / 2 * 512**2
    buffers = 2 * tokens * h * 2
    assert found.activations == pytest.approx(2 * (2 * layer + buffers))  # two micro batches in flight, two layers each
    last = stage_memory(tiny(), CLUSTER, TRAINER, "last", IDEAL)
    assert last.logits == pytest.approx(10 * tokens * 1024 / 2)
    assert last.activations == pytest.approx(found.activations / 2)
    assert found.context == pytest.approx(1.45 * GIB)


def test_an_interval_is_wider_where_nothing_was_measured_and_names_why() -> None:
    measured, unknown = interval(columns(), CLUSTER, TRAINER), interval(columns(), presets.cluster("dgx-h100"), TRAINER)
    assert unknown.high / unknown.low > measured.high / measured.low
    bare = CLUSTER.replace(constants={}, spreads={"between_share": 3.0}, residual=None)
    assert interval(columns(dp=16.0, pp=6.0), bare.replace(spreads={"reduction_share": 3.0}), TRAINER).dominant == (
        "reduction_share",
    )


def test_every_constant_of_a_shipped_cluster_is_known_and_positive() -> None:
    for name in presets.names("clusters"):
        if name != presets.HERE:
            cluster = presets.cluster(name)
            assert set(cluster.constants) <= set(vars(constants_of(cluster)))
            assert all(value > 0 for value in cluster.constants.values())


def flash(trainer: TrainerProfile = TRAINER) -> TrainerProfile:
    return trainer.model_copy(update={"attention": "flash"})


def test_flash_attention_stores_no_scores_and_is_never_slower() -> None:
    c = columns(recompute=0)
    heads = (
        stage_memory(c, CLUSTER, TRAINER, "first").activations - stage_memory(c, CLUSTER, flash(), "first").activations
    )
    k = constants_of(CLUSTER).activation_share
    assert heads == pytest.approx(k * 12 * 6 * 5 * 4 * 64 / 4 * 2048**2)  # 12 in flight, 6 layers, 5 bytes a score
    assert step_time(c, CLUSTER, flash()).seconds < step_time(c, CLUSTER, TRAINER).seconds


def test_an_explicit_split_costs_what_its_largest_stage_does() -> None:
    """Eight layers as 2, 2, 2, 2 are faster than as 1, 3, 2, 2, which take as long as twelve as 3, 3, 3, 3."""

    def seconds(layers: int, split: object) -> float:
        job = Job.of(
            {
                "model": Model(layers=layers, hidden=1024, heads=8).model_dump(),
                "cluster": CLUSTER.replace(nodes=1, devices_per_node=4).model_dump(),
                "trainer": TRAINER.model_dump(),
                "layout": {"pp": 4, "split": split},
                "batch": {"size": 16},
            }
        )
        return float(step_time(columns_of([job]), CLUSTER, TRAINER).seconds[0])

    assert seconds(8, (2, 2, 2, 2)) == seconds(8, "even") < seconds(8, (1, 3, 2, 2)) == seconds(12, "even")


def test_fp8_speeds_up_the_layers_gemms_only() -> None:
    """Attention, logits and loss stay in 16 bits, so a step gains less than the peak's factor of two."""
    h200, ours = presets.cluster("hgx-h200"), presets.trainer("trimaran")
    eight, sixteen = (step_time(columns(precision=p), h200, ours) for p in ("fp8", "bf16"))
    assert eight.head == sixteen.head
    assert 0.5 < eight.layer_compute / sixteen.layer_compute < 0.9


def test_processes_that_share_cores_feel_no_bubble_while_one_stage_keeps_the_cores_busy() -> None:
    """Then a step is the work of all stages, whoever does it when: as long as on one stage of all layers."""
    machine = presets.cluster("fugaku").replace(nodes=1, devices_per_node=8, cores=2)
    model = Model(layers=8, hidden=256, heads=8, vocab=512, seq_len=128)

    def job(cores: int | None, **layout: int) -> Job:
        return Job(
            model=model,
            cluster=machine.replace(cores=cores),
            trainer=presets.trainer("trimaran"),
            layout=Layout(micro_batch=1, **layout),
            batch=Batch(size=16),
            precision="fp32",
        )

    def bubble(job: Job) -> float:
        return float(np.atleast_1d(step_time(columns_of([job]), job.cluster, job.trainer).bubble)[0])

    assert bubble(job(2, dp=2, pp=4)) == 0.0  # two ranks of a stage, two cores
    assert bubble(job(None, dp=2, pp=4)) > 0.2  # (pp - 1) / micro batches = 3 / 8 of the busy time
    assert 0.0 < bubble(job(2, dp=1, pp=8)) < bubble(job(None, dp=1, pp=8))
