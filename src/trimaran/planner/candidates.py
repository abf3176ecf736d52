"""Every layout the rules allow, as blocks of columns: spec/rules.py for millions at once.

A block has three axes that broadcast: what a micro batch needs (mbs, sequence parallel, recompute), how stages and
replicas are cut (pp, virtual stages, schedule, split, dp), and ZeRO. tp is one number per block. So the expensive
expressions, which depend on the first axis only, are computed once for thousands of layouts.

Equivalent layouts are listed once: without a pipeline there is one schedule and one split, without tensor
parallelism no sequence parallelism, and with one replica ZeRO has nothing to shard.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trimaran.cost.columns import (
    RECOMPUTE,
    SCHEDULE,
    Columns,
    RecomputeCode,
    ScheduleCode,
    costed_weighted_layers,
    lasting_slowdown,
    model_columns,
)
from trimaran.planner.question import Question
from trimaran.spec import Layout
from trimaran.spec.rules import gemm_dims

BLOCK = 100_000  # layouts costed together: 0.8 MB an array, which caches hold
RECOMPUTE_NAME = {int(code): name for name, code in RECOMPUTE.items()}
SCHEDULE_NAME = {int(code): name for name, code in SCHEDULE.items()}

Array = npt.NDArray[Any]


class PipelineCut(NamedTuple):
    pp: int
    virtual: int
    schedule: ScheduleCode
    weighted: bool
    layers: int  # as the fullest stage has it times the stages: an uneven split is as slow as that


@dataclass(frozen=True)
class CandidateBlock:
    columns: Columns
    allowed: npt.NDArray[np.bool_]  # micro x stages x zero
    refused: int  # layouts in it that a rule about the schedule or ZeRO excludes

    def rows(self, index: tuple[Array, ...]) -> Columns:
        """Some of its layouts as flat columns, every field an array but precision and optimizer."""
        shape = self.allowed.shape
        values = {f.name: getattr(self.columns, f.name) for f in fields(Columns)}
        flat: dict[str, Any] = {
            name: value if isinstance(value, str) else np.broadcast_to(value, shape)[index]
            for name, value in values.items()
        }
        return Columns(**flat)

    def part(self, micro: Any, cuts: Any) -> Columns:
        """The grid of some micro rows and some cuts."""
        values: dict[str, Any] = {f.name: getattr(self.columns, f.name) for f in fields(Columns)}
        for name, value in values.items():
            if isinstance(value, np.ndarray) and value.shape[0] == self.allowed.shape[0] > 1:
                values[name] = value[micro]
            elif isinstance(value, np.ndarray) and value.shape[1] == self.allowed.shape[1] > 1:
                values[name] = value[:, cuts]
        return Columns(**values)


def blocks(question: Question, block: int = BLOCK) -> Iterator[CandidateBlock]:
    """All candidates of a question, tensor width by tensor width."""
    common = gcd(*question.batch.sizes())
    pipelines = list(_pipelines(question))
    if not pipelines:
        return
    stages = np.array(pipelines, dtype=np.int64).T
    replicas = np.array([d for d in divisors(common) if question.allows("dp", d)], dtype=np.int64)
    multiple, seq = _multiple(question), question.model.seq_len
    micro_batches = [m for m in divisors(common) if question.allows("mbs", m) and m * seq % multiple == 0]
    zero = np.array([z for z in range(4) if question.allows("zero", z)])
    for tp in tensor_widths(question):
        micro = _micro(question, tp, micro_batches)
        cut = _cuts(question, tp, stages, replicas)
        if not (micro.size and cut.size and zero.size):
            continue
        width = max(1, block // (micro.shape[1] * len(zero)))
        for start in range(0, cut.shape[1], width):
            yield _block(question, tp, micro, cut[:, start : start + width], zero)


def cuts_excluded(question: Question) -> dict[str, int]:
    """How many ways to cut the devices into dp x tp x pp are excluded before any layout is made, by reason.

    Counted, not listed: dp must be a multiple of what makes tp x pp fill whole nodes.
    """
    model = question.model
    widths = set(tensor_widths(question))
    depths = {pipeline.pp for pipeline in _pipelines(question)}
    tps = [tp for tp in range(1, min(model.heads, question.cluster.devices) + 1) if question.allows("tp", tp)]
    pps = [pp for pp in range(1, min(model.layers + 2, question.cluster.devices) + 1) if question.allows("pp", pp)]
    good_tps, good_pps = [tp for tp in tps if tp in widths], [pp for pp in pps if pp in depths]
    all_cuts = _cut_count(question, tps, pps, None)
    with_tp = _cut_count(question, good_tps, pps, None)
    with_pp = _cut_count(question, good_tps, good_pps, None)
    with_dp = _cut_count(question, good_tps, good_pps, divisors(gcd(*question.batch.sizes())))
    multiple = _multiple(question)
    narrow = f", or not into multiples of {multiple}" if multiple > 1 else ""
    return {
        f"tp cuts the heads, MLP or vocabulary unevenly{narrow}": all_cuts - with_tp,
        "the layers make no such pipeline": with_tp - with_pp,
        "dp does not divide the batch": with_pp - with_dp,
    }


def _cut_count(question: Question, tps: list[int], pps: list[int], dps: list[int] | None) -> int:
    """Of (tp, pp, dp) that fill whole nodes, for these dp or for any."""
    per_node, most = question.cluster.devices_per_node, question.cluster.nodes
    unit = np.multiply.outer(np.array(tps, dtype=np.int64), np.array(pps, dtype=np.int64))
    if dps is None and "dp" in question.fixed:
        dps = sorted(question.fixed["dp"])
    if dps is None and "nodes" in question.fixed:
        return sum(int((nodes * per_node % unit == 0).sum()) for nodes in question.fixed["nodes"] if nodes <= most)
    if dps is None:
        return int((most * per_node // unit // (per_node // np.gcd(unit, per_node))).sum())
    total = 0
    for dp in dps:
        nodes, rest = np.divmod(unit * dp, per_node)
        whole = (rest == 0) & (nodes <= most)
        if "nodes" in question.fixed:
            whole &= np.isin(nodes, list(question.fixed["nodes"]))
        total += int(whole.sum()) if question.allows("dp", dp) else 0
    return total


def layout_of(rows: Columns, i: int) -> Layout:
    return Layout(
        dp=int(rows.dp[i]),
        tp=int(rows.tp[i]),
        pp=int(rows.pp[i]),
        virtual_stages=int(rows.virtual[i]),
        schedule=SCHEDULE_NAME[int(rows.schedule[i])],
        micro_batch=int(rows.mbs[i]),
        zero=int(rows.zero[i]),
        recompute=RECOMPUTE_NAME[int(rows.recompute[i])],
        sequence_parallel=bool(rows.sequence_parallel[i]),
        split="weighted" if rows.weighted[i] else "even",
    )


def join_columns(parts: Sequence[Columns]) -> Columns:
    """The rows of several blocks, which agree in precision and optimizer."""
    values = {f.name: [getattr(part, f.name) for part in parts] for f in fields(Columns)}
    joined: dict[str, Any] = {n: v[0] if isinstance(v[0], str) else np.concatenate(v) for n, v in values.items()}
    return Columns(**joined)


def tensor_widths(question: Question) -> list[int]:
    model = question.model
    common = gcd(model.heads, model.kv_heads, model.ffn_hidden, model.padded_vocab or 0)
    widths = [tp for tp in divisors(common) if tp <= question.cluster.devices and question.allows("tp", tp)]
    multiple = _multiple(question)
    return [tp for tp in widths if not any(side % multiple for side in gemm_dims(model, tp).values())]


def _multiple(question: Question) -> int:
    """Of which the dimensions of the layers' GEMMs must be multiples (rules.fp8_dims)."""
    return question.trainer.fp8_multiple if question.precision == "fp8" else 1


def divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _pipelines(question: Question) -> Iterator[PipelineCut]:
    model, trainer, allows = question.model, question.trainer, question.allows
    without_pipeline = [s for s in ("1f1b", "gpipe", "zero-bubble") if s in trainer.schedules and allows("schedule", s)]
    if without_pipeline and allows("pp", 1) and allows("virtual_stages", 1):
        yield PipelineCut(1, 1, SCHEDULE[without_pipeline[0]], not allows("split", "even"), model.layers)
    if model.tied_embeddings and not trainer.ties_embeddings_across_stages:
        return
    for pp in range(2, min(model.layers + 2, question.cluster.devices) + 1):
        if not allows("pp", pp):
            continue
        for virtual in range(1, (model.layers + 2) // pp + 1):
            if not allows("virtual_stages", virtual):
                continue
            stages = pp * virtual
            ceiling = costed_weighted_layers(model.layers, stages)
            splits = [(False, model.layers)] if model.layers % stages == 0 else []
            splits += [(True, ceiling)]
            for schedule in trainer.schedules:
                if (schedule == "interleaved") != (virtual > 1) or not allows("schedule", schedule):
                    continue
                for weighted, layers in splits:
                    if allows("split", "weighted" if weighted else "even"):
                        yield PipelineCut(pp, virtual, SCHEDULE[schedule], weighted, layers)


def _micro(question: Question, tp: int, micro_batches: list[int]) -> Array:
    """Rows mbs, sequence parallel, recompute; a column each way."""
    cuts_sequence = tp > 1 and question.model.seq_len % tp == 0 and question.trainer.sequence_parallel
    return np.array(
        [
            (mbs, sp, RECOMPUTE[recompute])
            for mbs in micro_batches
            for sp in ((False, True) if cuts_sequence else (False,))
            for recompute in question.trainer.recompute
            if question.allows("sequence_parallel", sp) and question.allows("recompute", recompute)
        ],
        dtype=np.int64,
    ).T


def _cuts(question: Question, tp: int, stages: Array, replicas: Array) -> Array:
    """Every pipeline with every dp that fills whole nodes: the rows of PipelineCut, then dp."""
    devices = tp * stages[0][:, None] * replicas[None, :]
    nodes, rest = np.divmod(devices, question.cluster.devices_per_node)
    fits = (rest == 0) & (nodes <= question.cluster.nodes)
    if "nodes" in question.fixed:
        fits &= np.isin(nodes, list(question.fixed["nodes"]))
    replica, pipeline = np.nonzero(fits.T)  # by dp, so that a block has few micro batches in common
    return np.vstack([stages[:, pipeline], replicas[replica]])


def _block(question: Question, tp: int, micro: Array, cut: Array, zero: Array) -> CandidateBlock:
    divides, allowed = _allowed(question, micro, cut, zero)
    refused = int(divides.sum()) * len(zero) - int(allowed.sum())
    # Rows and columns in which nothing is allowed are not costed; one stays, because a block is never empty.
    rows, columns = allowed.any(axis=(1, 2)), allowed.any(axis=(0, 2))
    rows[0] |= not rows.any()
    columns[0] |= not columns.any()
    allowed = allowed[rows][:, columns]
    mbs, sequence_parallel, recompute = micro[:, rows, None, None]
    pp, virtual, schedule, weighted, layers, dp = cut[:, None, columns, None]
    values = {
        **model_columns(question.model),
        "layers": layers.astype(float),
        "dp": dp.astype(float),
        "tp": float(tp),
        "pp": pp.astype(float),
        "virtual": virtual.astype(float),
        "mbs": mbs.astype(float),
        "gbs": float(question.batch.size),
        "zero": zero[None, None, :],
        "recompute": recompute,
        "schedule": schedule,
        "sequence_parallel": sequence_parallel.astype(bool),
        "weighted": weighted.astype(bool),
        "devices_per_node": float(question.cluster.devices_per_node),
        "slowdown": lasting_slowdown(question.cluster),
        "precision": question.precision,
        "optimizer": question.optimizer,
    }
    return CandidateBlock(Columns(**values), allowed, refused)


def _allowed(question: Question, micro: Array, cut: Array, zero: Array) -> tuple[Any, Any]:
    """Where the batch is divisible, and where every rule holds."""
    sizes = np.array(question.batch.sizes())
    mbs, _, recompute = micro[:, :, None, None]
    pp, _, schedule, _, _, dp = cut[:, None, :, None]
    divides = np.gcd.reduce(sizes) % (dp * mbs) == 0
    zero_bubble = schedule == ScheduleCode.ZERO_BUBBLE
    runs = divides & _runs(question, dp * mbs, pp, schedule, sizes)
    runs &= ~(zero_bubble & (recompute != RecomputeCode.NONE))
    return divides, runs & _shards(question, pp, dp, zero) & ~(zero_bubble & (zero == 3))


def _runs(question: Question, unit: Array, pp: Array, schedule: Array, sizes: Array) -> Any:
    """Whether the schedule can run the micro batches of every step of the ramp-up (rules.micro_batches)."""
    trainer = question.trainer
    runs = np.ones(np.broadcast_shapes(unit.shape, pp.shape), dtype=bool)
    if not trainer.fewer_micro_batches_than_stages:
        needs_many = np.isin(schedule, (ScheduleCode.ONE_F_ONE_B, ScheduleCode.ZERO_BUBBLE))
        runs &= ~needs_many | (sizes.min() // unit >= pp) | (pp == 1)
    even_rounds = trainer.interleaved_micro_batches == "even-rounds"
    in_rounds = (ScheduleCode.INTERLEAVED, ScheduleCode.ZERO_BUBBLE) if even_rounds else (ScheduleCode.INTERLEAVED,)
    needs_rounds = np.isin(schedule, in_rounds)
    if not needs_rounds.any():
        return runs
    for size in sizes:
        count = size // unit
        fills = count % np.maximum(1, count // pp) == 0 if even_rounds else count % pp == 0
        runs &= ~needs_rounds | fills | (pp == 1)
    return runs


def _shards(question: Question, pp: Array, dp: Array, zero: Array) -> Any:
    """Whether the trainer offers the ZeRO stage there (rules.zero); with one replica only the lowest."""
    trainer = question.trainer

    def offered(stages: tuple[int, ...]) -> Any:
        lowest = min((stage for stage in stages if stage in zero), default=0)
        return np.isin(zero, stages) & ((dp > 1) | (zero == lowest))

    return np.where(pp == 1, offered(trainer.zero_stages), offered(trainer.zero_stages_with_pipeline))
