"""Every rule that makes a Job impossible, once. Each is a question put to a Job, answered by a sentence or nothing."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trimaran.spec.layout import stage_layers

if TYPE_CHECKING:
    from trimaran.spec.job import Job
    from trimaran.spec.model import Model


def problems(job: "Job") -> list[str]:
    """Why this Job cannot run: one sentence per broken rule, empty when it can."""
    return [sentence for rule in RULES for sentence in rule(job)]


def devices(job: "Job") -> Iterator[str]:
    layout, cluster = job.layout, job.cluster
    if layout.devices != cluster.devices:
        yield (
            f"dp {layout.dp} x tp {layout.tp} x pp {layout.pp} = {layout.devices} devices,"
            f" but {cluster.nodes} nodes of {cluster.devices_per_node} have {cluster.devices}."
        )


def batch(job: "Job") -> Iterator[str]:
    dp, mbs = job.layout.dp, job.layout.micro_batch
    for size in job.batch.sizes():
        if size % (dp * mbs):
            what = "The global batch" if size == job.batch.size else "The ramp-up's batch"
            yield f"{what} {size} is not a multiple of dp {dp} x micro batch {mbs} = {dp * mbs}."
            return


def tensor_parallel(job: "Job") -> Iterator[str]:
    model, tp = job.model, job.layout.tp
    for name, value in (("heads", model.heads), ("kv_heads", model.kv_heads), ("ffn_hidden", model.ffn_hidden)):
        if value % tp:
            yield f"{name} {value} cannot be cut into tp {tp} equal parts."
    if model.padded_vocab is not None and model.padded_vocab % tp:
        yield f"padded_vocab {model.padded_vocab} cannot be cut into tp {tp} equal parts."
    if job.layout.sequence_parallel and model.seq_len % tp:
        yield f"seq_len {model.seq_len} cannot be cut into tp {tp} equal parts for sequence parallelism."


def fp8_dims(job: "Job") -> Iterator[str]:
    model, layout, multiple = job.model, job.layout, job.trainer.fp8_multiple
    if job.precision != "fp8" or model.heads % layout.tp or model.kv_heads % layout.tp or model.ffn_hidden % layout.tp:
        return  # the latter said by `tensor_parallel`
    needed = f"{job.trainer.name}'s products in fp8 have sides that are multiples of {multiple}"
    for name, side in gemm_dims(model, layout.tp).items():
        if side % multiple:
            where = f" on each of {layout.tp} tensor ranks" if layout.tp > 1 else ""
            yield f"{needed}, but {name} is {side}{where}."
    tokens = layout.micro_batch * model.seq_len
    if tokens % multiple:
        yield f"{needed}, but micro batch {layout.micro_batch} x seq_len {model.seq_len} is {tokens}."


def gemm_dims(model: "Model", tp: int) -> dict[str, int]:
    """Of a layer's matrices on one tensor rank; what is left out is a multiple of one of them."""
    return {
        "hidden": model.hidden // tp,
        "the width of query, key and value": (model.heads + 2 * model.kv_heads) * model.head_dim // tp,
        "ffn_hidden": model.ffn_hidden // tp,
    }


def stages(job: "Job") -> Iterator[str]:
    layers, layout = job.model.layers, job.layout
    if stage_layers(layers, layout) is not None:
        return
    count = f"{layout.pp} stages" if layout.virtual_stages == 1 else f"{layout.pp} x {layout.virtual_stages} stages"
    if layout.split == "even":
        yield f"{layers} layers cannot be split evenly over {count} ({layers}/{layout.stages})."
    elif layout.split == "weighted":
        yield f"{layers} layers with embedding and head are {layers + 2} units, fewer than {count}."
    else:
        yield (
            f"The explicit split {list(layout.split)} has {len(layout.split)} parts and {sum(layout.split)} layers,"
            f" but there are {count} and {layers} layers."
        )


def schedule(job: "Job") -> Iterator[str]:
    layout, trainer = job.layout, job.trainer
    if layout.schedule not in trainer.schedules:
        yield f"{trainer.name} has no {layout.schedule} schedule, only {_listed(trainer.schedules)}."
    if layout.schedule == "interleaved" and (layout.virtual_stages == 1 or layout.pp == 1):
        yield (
            f"The interleaved schedule needs at least 2 stages of at least 2 chunks,"
            f" but pp is {layout.pp} and virtual_stages {layout.virtual_stages}."
        )
    if layout.schedule != "interleaved" and layout.virtual_stages > 1:
        yield f"virtual_stages {layout.virtual_stages} needs the interleaved schedule, not {layout.schedule}."
    if layout.schedule == "zero-bubble" and layout.recompute != "none":
        yield (
            f"The zero-bubble schedule splits each backward pass in two and would repeat a block"
            f" many times under {layout.recompute} recompute."
        )
    if layout.schedule == "zero-bubble" and layout.zero == 3:
        yield "The zero-bubble schedule with ZeRO 3 loses gradients, because weights are gone before its second half."


def micro_batches(job: "Job") -> Iterator[str]:
    layout, trainer = job.layout, job.trainer
    if layout.pp == 1:
        return
    for size in job.batch.sizes():
        count, rest = divmod(size, layout.dp * layout.micro_batch)
        if rest:
            return  # said by `batch`
        given = f"A batch of {size} is {count} micro batches per replica"
        few = layout.schedule in ("1f1b", "zero-bubble") and count < layout.pp
        if few and not trainer.fewer_micro_batches_than_stages:
            yield f"{given}, but {trainer.name}'s {layout.schedule} needs at least as many as its {layout.pp} stages."
            return
        rounds = trainer.interleaved_micro_batches
        dealt = layout.schedule == "interleaved" or (layout.schedule == "zero-bubble" and rounds == "even-rounds")
        if dealt and not _interleaves(count, layout.pp, rounds):
            yield f"{given}, which {trainer.name}'s {layout.schedule} schedule cannot deal to {layout.pp} stages."
            return


def zero(job: "Job") -> Iterator[str]:
    layout, trainer = job.layout, job.trainer
    offered = trainer.zero_stages if layout.pp == 1 else trainer.zero_stages_with_pipeline
    if layout.zero not in offered:
        where = "" if layout.pp == 1 else f" with a pipeline of {layout.pp}"
        yield f"{trainer.name} has no ZeRO {layout.zero}{where}, only {_listed(offered)}."


def software(job: "Job") -> Iterator[str]:
    trainer, layout = job.trainer, job.layout
    if job.precision not in job.cluster.device.peak_tflops:
        has = _listed(job.cluster.device.peak_tflops)
        yield f"The device {job.cluster.device.name} has no {job.precision}, only {has}."
    if job.precision not in trainer.precisions:
        yield f"{trainer.name} does not train in {job.precision}, only in {_listed(trainer.precisions)}."
    if job.optimizer not in trainer.optimizers:
        yield f"{trainer.name} has no optimizer {job.optimizer}, only {_listed(trainer.optimizers)}."
    if layout.recompute not in trainer.recompute:
        yield f"{trainer.name} has no {layout.recompute} recompute, only {_listed(trainer.recompute)}."
    if layout.sequence_parallel and not trainer.sequence_parallel:
        yield f"{trainer.name} has no sequence parallelism."
    if layout.pp > 1 and job.model.tied_embeddings and not trainer.ties_embeddings_across_stages:
        yield f"{trainer.name} cannot tie the embeddings of the first and last of {layout.pp} stages."


RULES = (devices, batch, tensor_parallel, fp8_dims, stages, schedule, micro_batches, zero, software)


def warnings(job: "Job") -> list[str]:
    """What is allowed but probably not wanted."""
    layout, cluster, found = job.layout, job.cluster, []
    if cluster.nodes > 1 and cluster.devices_per_node % layout.tp:
        found.append(
            f"tp {layout.tp} does not fit into nodes of {cluster.devices_per_node} devices: every layer's"
            f" all-reduces cross the {cluster.between.name} ({cluster.between.gb_per_s:g} GB/s a node"
            f" instead of {cluster.inside.gb_per_s:g} a device)."
        )
    if layout.pp > 1 and layout.zero >= 2 and not job.trainer.zero_gradients_with_pipeline:
        found.append(f"Under a pipeline {job.trainer.name}'s ZeRO {layout.zero} saves no more gradients than ZeRO 1.")
    if layout.zero and layout.dp == 1:
        found.append(f"ZeRO {layout.zero} shards over dp, which is 1 here: it does nothing.")
    units = [n + (i == 0) + (i == layout.stages - 1) for i, n in enumerate(job.stage_layers)]
    if layout.pp > 1 and layout.split == "weighted" and max(units) != min(units):
        found.append(f"The weighted split is uneven: {min(units)} to {max(units)} units a stage.")
    if layout.pp > 1 and job.micro_batches < layout.pp:
        found.append(f"{job.micro_batches} micro batches for {layout.pp} stages: most of the pipeline idles.")
    return found


def _interleaves(count: int, stages: int, rule: str) -> bool:
    if rule == "multiple-of-stages":  # Megatron
        return count % stages == 0
    return count % max(1, count // stages) == 0  # torch.distributed.pipelining


def _listed(names: object) -> str:
    items = [str(name) for name in names]  # type: ignore[attr-defined]
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " or " + items[-1]
