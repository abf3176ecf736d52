"""The rules that a Job must satisfy. Each is a function that yields one sentence per violation."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from trimaran.spec.layout import stage_layers
from trimaran.spec.mistake import shortened

if TYPE_CHECKING:
    from trimaran.spec.job import Job
    from trimaran.spec.model import Model


def problems(job: "Job") -> list[str]:
    """Why this Job cannot run: one sentence per violated rule, empty when it can."""
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
    for name in ("heads", "kv_heads", "ffn_hidden", "padded_vocab"):
        value = getattr(model, name)
        if value is not None and value % tp:
            yield f"{name} {value} is not divisible by tp {tp}."
    if job.layout.sequence_parallel and model.seq_len % tp:
        yield f"seq_len {model.seq_len} is not divisible by tp {tp}, as sequence parallelism needs."


def fp8_dims(job: "Job") -> Iterator[str]:
    model, layout, multiple = job.model, job.layout, job.trainer.fp8_multiple
    if job.precision != "fp8" or model.heads % layout.tp or model.kv_heads % layout.tp or model.ffn_hidden % layout.tp:
        return  # `tensor_parallel` reports the latter
    needed = f"{job.trainer.name}'s fp8 GEMMs need dimensions that are multiples of {multiple}"
    for name, size in gemm_dims(model, layout.tp).items():
        if size % multiple:
            where = f" on each of {layout.tp} tensor-parallel ranks" if layout.tp > 1 else ""
            yield f"{needed}, but {name} is {size}{where}."
    tokens = layout.micro_batch * model.seq_len
    if tokens % multiple:
        yield f"{needed}, but micro batch {layout.micro_batch} x seq_len {model.seq_len} is {tokens}."


def gemm_dims(model: "Model", tp: int) -> dict[str, int]:
    """Dimensions of a layer's GEMMs on one tensor-parallel rank; all others are multiples of one of these."""
    return {
        "hidden": model.hidden // tp,
        "the width of query, key and value": (model.heads + 2 * model.kv_heads) * model.head_dim // tp,
        "ffn_hidden": model.ffn_hidden // tp,
    }


def stages(job: "Job") -> Iterator[str]:
    layers, layout = job.model.layers, job.layout
    split = stage_layers(layers, layout)
    if split is not None:
        for rank in range(1, layout.pp - 1):  # the first has the embedding, the last the head
            if not any(split[rank :: layout.pp]):
                yield (
                    f"The split {shortened(list(split))} leaves nothing to train on pipeline rank {rank}; only the"
                    " first and the last stage, which have the embedding and the LM head, can be without layers."
                )
                return
        return
    count = f"{layout.pp} stages" if layout.virtual_stages == 1 else f"{layout.pp} x {layout.virtual_stages} stages"
    if layout.split == "even":
        yield f"{layers} layers cannot be split evenly over {count} ({layers}/{layout.stages})."
    elif layout.split == "weighted":
        yield f"{layers} layers with embedding and LM head are {layers + 2} units, fewer than {count}."
    else:
        yield (
            f"The explicit split {shortened(list(layout.split))} has {len(layout.split)} parts and"
            f" {sum(layout.split)} layers, but there are {count} and {layers} layers."
        )


def schedule(job: "Job") -> Iterator[str]:
    layout, trainer = job.layout, job.trainer
    if layout.schedule not in trainer.schedules:
        yield f"{trainer.name} has no {layout.schedule} schedule, only {_list_or(trainer.schedules)}."
    if layout.schedule == "interleaved" and (layout.virtual_stages == 1 or layout.pp == 1):
        yield (
            f"The interleaved schedule needs at least 2 stages of at least 2 chunks,"
            f" but pp is {layout.pp} and virtual_stages {layout.virtual_stages}."
        )
    if layout.schedule != "interleaved" and layout.virtual_stages > 1:
        yield f"virtual_stages {layout.virtual_stages} needs the interleaved schedule, not {layout.schedule}."
    if layout.schedule == "zero-bubble" and layout.recompute != "none":
        yield (
            f"The zero-bubble schedule splits each backward pass in two, so {layout.recompute} recompute"
            " would run a block's forward pass many times."
        )
    if layout.schedule == "zero-bubble" and layout.zero == 3:
        yield "The zero-bubble schedule with ZeRO 3 loses gradients, because weights are freed before its second half."


def micro_batches(job: "Job") -> Iterator[str]:
    layout, trainer = job.layout, job.trainer
    if layout.pp == 1:
        return
    for size in job.batch.sizes():
        count, rest = divmod(size, layout.dp * layout.micro_batch)
        if rest:
            return  # `batch` reports it
        given = f"A batch of {size} is {count} micro batches per replica"
        few = layout.schedule in ("1f1b", "zero-bubble") and count < layout.pp
        if few and not trainer.fewer_micro_batches_than_stages:
            yield f"{given}, but {trainer.name}'s {layout.schedule} needs at least as many as its {layout.pp} stages."
            return
        rounds = trainer.interleaved_micro_batches
        in_rounds = layout.schedule == "interleaved" or (layout.schedule == "zero-bubble" and rounds == "even-rounds")
        if in_rounds and not _can_interleave(count, layout.pp, rounds):
            yield f"{given}, which {trainer.name}'s {layout.schedule} schedule cannot split over {layout.pp} stages."
            return


def zero(job: "Job") -> Iterator[str]:
    layout, trainer = job.layout, job.trainer
    offered = trainer.zero_stages if layout.pp == 1 else trainer.zero_stages_with_pipeline
    if layout.zero not in offered:
        where = "" if layout.pp == 1 else f" with a pipeline of {layout.pp}"
        yield f"{trainer.name} has no ZeRO {layout.zero}{where}, only {_list_or(offered)}."


def software(job: "Job") -> Iterator[str]:
    trainer, layout = job.trainer, job.layout
    if job.precision not in job.cluster.device.peak_tflops:
        has = _list_or(job.cluster.device.peak_tflops)
        yield f"The device {job.cluster.device.name} has no {job.precision}, only {has}."
    if job.precision not in trainer.precisions:
        yield f"{trainer.name} does not train in {job.precision}, only in {_list_or(trainer.precisions)}."
    if job.optimizer not in trainer.optimizers:
        yield f"{trainer.name} has no optimizer {job.optimizer}, only {_list_or(trainer.optimizers)}."
    if layout.recompute not in trainer.recompute:
        yield f"{trainer.name} has no {layout.recompute} recompute, only {_list_or(trainer.recompute)}."
    if layout.sequence_parallel and not trainer.sequence_parallel:
        yield f"{trainer.name} has no sequence parallelism."
    if layout.pp > 1 and job.model.tied_embeddings and not trainer.ties_embeddings_across_stages:
        yield f"{trainer.name} cannot tie the embeddings of the first and last of {layout.pp} stages."


RULES = (devices, batch, tensor_parallel, fp8_dims, stages, schedule, micro_batches, zero, software)


def warnings(job: "Job") -> list[str]:
    """What is allowed but probably a mistake."""
    layout, cluster, sentences = job.layout, job.cluster, []
    if cluster.nodes > 1 and cluster.devices_per_node % layout.tp:
        sentences.append(
            f"tp {layout.tp} does not fit into nodes of {cluster.devices_per_node} devices: every layer's"
            f" all-reduces cross the {cluster.between.name} ({cluster.between.gb_per_s:g} GB/s a node"
            f" instead of {cluster.inside.gb_per_s:g} a device)."
        )
    if layout.pp > 1 and layout.zero >= 2 and not job.trainer.zero_gradients_with_pipeline:
        sentences.append(
            f"With a pipeline {job.trainer.name}'s ZeRO {layout.zero} shards no gradients: it acts as ZeRO 1."
        )
    if layout.zero and layout.dp == 1:
        sentences.append(f"ZeRO {layout.zero} shards over dp, which is 1: it has no effect.")
    units = [n + (i == 0) + (i == layout.stages - 1) for i, n in enumerate(job.stage_layers)]
    if layout.pp > 1 and layout.split == "weighted" and max(units) != min(units):
        sentences.append(f"The weighted split is uneven: {min(units)} to {max(units)} units a stage.")
    if layout.pp > 1 and job.micro_batches < layout.pp:
        sentences.append(f"{job.micro_batches} micro batches for {layout.pp} stages: most of the pipeline idles.")
    return sentences


def _can_interleave(count: int, stages: int, rule: str) -> bool:
    if rule == "multiple-of-stages":  # Megatron
        return count % stages == 0
    return count % max(1, count // stages) == 0  # torch.distributed.pipelining


def _list_or(names: Iterable[object]) -> str:
    items = [str(name) for name in names]
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " or " + items[-1]
