"""Layouts built one by one as Jobs, with the rules of spec, against which the planner's columns are compared."""

import itertools
from collections.abc import Iterator

from trimaran.cost.columns import columns_of
from trimaran.cost.predict import predict
from trimaran.planner.question import Question
from trimaran.spec import Batch, Job, Layout, presets
from trimaran.spec.rules import problems


def small_question() -> Question:
    """A cluster of 2-device nodes and a trainer with one schedule, so that all layouts can be tried."""
    cluster = presets.cluster("jean-zay-v100-32gb").replace(devices_per_node=2, nodes=2)
    trainer = presets.trainer("megatron-deepspeed-2022")
    return Question(presets.model("gpt-1b3"), cluster, trainer, Batch(size=16), "fp16")


def jobs(question: Question, nodes: int) -> Iterator[Job]:
    """Every Job of exactly so many nodes that the rules allow and that fits."""
    cluster = question.cluster.replace(nodes=nodes)
    cuts = [(tp, pp) for tp in (1, 2, 4) for pp in (1, 2, 3, 4) if cluster.devices % (tp * pp) == 0]
    rest = itertools.product((1, 2, 4, 8, 16, 32), (0, 1, 2, 3), ("none", "full"), (False, True), ("even", "weighted"))
    for (tp, pp), (mbs, zero, recompute, sequence, split) in itertools.product(cuts, list(rest)):
        if (sequence and tp == 1) or (split == "weighted" and pp == 1):
            continue
        layout = Layout.of(
            {
                "dp": cluster.devices // (tp * pp),
                "tp": tp,
                "pp": pp,
                "micro_batch": mbs,
                "zero": zero,
                "recompute": recompute,
                "sequence_parallel": sequence,
                "split": split,
            }
        )
        job = Job.model_construct(
            model=question.model,
            cluster=cluster,
            trainer=question.trainer,
            layout=layout,
            batch=question.batch,
            precision=question.precision,
            optimizer=question.optimizer,
        )
        if not problems(job) and bool(predict(columns_of([job]), cluster, question.trainer).fits[0]):
            yield job
