"""What `import trimaran as tm` offers: plan, predict, explain, estimate, load, train.

Arguments are names of presets, paths of files, or the objects themselves. Every function imports what it needs itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas

    from trimaran.cost.predict import JobPrediction
    from trimaran.planner.estimates import Estimate
    from trimaran.planner.explain import Explanation
    from trimaran.planner.plan import Plan
    from trimaran.planner.question import Fix, Objective
    from trimaran.spec import Batch, Cluster, Job, Model, TrainerProfile
    from trimaran.spec.batch import Ramp

Status = Literal["ok", "oom", "fail", "interrupted", "nan"]


def plan(
    model: "str | Path | Model | Job",
    on: "str | Path | Cluster | None" = None,
    gbs: "int | Batch | None" = None,
    nodes: int | None = None,
    *,
    ramp: "str | tuple[int, int, int] | Ramp" = "",
    fix: "Fix" = (),
    trainer: "str | Path | TrainerProfile" = "",
    precision: str = "",
    optimizer: str = "",
    top: int = 10,
    objective: "Objective" = "time",
    variants: bool = False,
) -> "Plan":
    """Find the fastest layouts: every one that fits, predicted and ranked by seconds per iteration.

    model: a preset's name, a file, or a Model; or a Job, whose question is planned anew (then without `on` and `gbs`).
    on: the cluster. gbs: global batch, in samples. nodes: the most to use; by default all of the cluster.
    ramp: batch ramp-up, (start, increment, samples). fix: only such layouts, as in {"tp": 8, "mbs": [1, 2]}.
    trainer: the software that runs it; by default ours. precision: by default bf16, or what the device has.
    objective: "time", "tokens-per-device-hour" or "memory". top: how many layouts are kept.
    variants: also the slower ZeRO stages, recompute modes and schedules of the same dp, tp, pp and micro batch.

    Where no layout exists, the plan is empty (`if not plan`) and `plan.impossible` says why and what would work.

    >>> plan = tm.plan("bloom-176b", on="jean-zay-a100-80gb", nodes=48, gbs=2048, fix={"tp": 8})
    >>> plan.best.job.save("job.yaml")
    """
    from typing import get_args

    from trimaran.planner.plan import make_plan
    from trimaran.planner.question import Objective, Question
    from trimaran.spec import Job, Mistake

    if objective not in get_args(Objective):
        raise Mistake(f"objective is {objective!r}, but it is one of {', '.join(get_args(Objective))}.")
    if not isinstance(top, int) or top < 1:
        raise Mistake(f"top is {top!r}, but a plan keeps at least 1 layout.")
    if isinstance(model, Job):
        given = {"on": on, "gbs": gbs, "ramp": ramp, "trainer": trainer, "precision": precision, "optimizer": optimizer}
        for name, value in given.items():
            if value:
                raise Mistake(f"{name} is {value!r}, but the job {model.name} says that already; leave it out.")
        return make_plan(Question.of_job(model, nodes, fix), top, objective, variants)
    if on is None or gbs is None:
        name, what = ("on", "the cluster") if on is None else ("gbs", "the global batch")
        raise Mistake(f"{name} is missing: {what} to plan for.")
    options: dict[str, Any] = {"trainer": trainer, "precision": precision, "optimizer": optimizer}
    question = Question.of(model, on, gbs, nodes, ramp=ramp, fix=fix, **options)
    return make_plan(question, top, objective, variants)


def predict(job: "str | Path | Job") -> "JobPrediction":
    """Predict seconds per iteration with an interval, memory by stage, and whether the job fits.

    >>> tm.predict("examples/jobs/bloom-176b.yaml").seconds
    """
    from trimaran.cost.predict import predict_job

    return predict_job(load(job))


def explain(job: "str | Path | Job") -> "Explanation":
    """Say where the memory of each stage and the time of a step go.

    >>> tm.explain("examples/jobs/bloom-176b.yaml").time_seconds()
    """
    from trimaran.planner.explain import explain

    return explain(load(job))


def estimate(
    model: "str | Path | Model",
    on: "str | Path | Cluster",
    gbs: "int | Batch",
    tokens: str | float = "300B",
    nodes: str | int | Sequence[int] = "",
    *,
    watts: float | None = None,
    price: float | None = None,
    mtbf_hours: float | None = None,
    checkpoint_seconds: float = 60.0,
    restart_minutes: float = 10.0,
    fix: "Fix" = (),
    trainer: "str | Path | TrainerProfile" = "",
    precision: str = "",
    optimizer: str = "",
) -> "Estimate":
    """Estimate days, device-hours, energy and cost of a whole training on each number of nodes.

    tokens: to train on, such as "366B". nodes: the numbers to compare; by default doublings up to all of the cluster.
    watts: power of a device; by default its data sheet's. price: of a device for an hour.
    mtbf_hours: mean hours between failures of one node. With it the days include checkpoints (at Daly's optimal
    interval, each of `checkpoint_seconds`), the work that failures undo, and restarts (`restart_minutes`).

    >>> tm.estimate("bloom-176b", on="jean-zay-a100-80gb", gbs=2048, tokens="366B", nodes=[16, 32, 48]).fastest.days
    """
    from trimaran.planner.estimates import make_estimate
    from trimaran.planner.question import Question

    options: dict[str, Any] = {"trainer": trainer, "precision": precision, "optimizer": optimizer}
    return make_estimate(
        Question.of(model, on, gbs, fix=fix, **options),
        tokens,
        nodes,
        watts=watts,
        price=price,
        mtbf_hours=mtbf_hours,
        checkpoint_seconds=checkpoint_seconds,
        restart_minutes=restart_minutes,
    )


def load(job: "str | Path | Job") -> "Job":
    """Read a job: a file that `Job.save` or `trimaran plan --save` wrote, or a preset's name. A Job stays as it is.

    >>> tm.load("examples/jobs/bloom-176b.yaml").layout
    """
    from trimaran.spec import Job, Mistake
    from trimaran.spec.files import load_job

    if isinstance(job, Job):
        return job
    if not isinstance(job, str | Path):
        raise Mistake(f"The job is {job!r}, but it is a preset's name, a file or a Job.")
    return load_job(job)


@dataclass(frozen=True)
class TrainingRun:
    """How a training ended, and a record of each iteration, as `trimaran train --metrics` writes them."""

    job: "Job" = field(repr=False)
    status: Status
    records: tuple[dict[str, Any], ...] = field(repr=False)
    output: str = field(repr=False)  # what the processes printed

    @property
    def losses(self) -> list[float]:
        return [record["loss"] for record in self.records]

    @property
    def seconds(self) -> float | None:
        """Median of an iteration, without those of the warm-up; None if there are no others."""
        from statistics import median

        timed = [record["seconds"] for record in self.records if not record["warm_up"]]
        return median(timed) if timed else None

    def frame(self) -> "pandas.DataFrame":
        """The records as a pandas DataFrame."""
        from trimaran.planner.tables import data_frame

        return data_frame(self.records)


def train(job: "str | Path | Job", steps: int | None = None, *, verbose: bool = True) -> TrainingRun:
    """Train a job on this machine: what `trimaran train` does, in processes of its own. Needs torch.

    steps: instead of the job's. verbose: print its lines as they come. Interrupting it stops the training at the end
    of an iteration, saves a checkpoint where the job asks for them, and returns what there is.

    >>> tm.train("tiny", steps=5).losses
    """
    import json
    import signal
    import subprocess
    import sys
    from tempfile import TemporaryDirectory

    from trimaran.processes import exit_codes
    from trimaran.spec import Mistake
    from trimaran.spec.mistake import require_package

    loaded = load(job)
    loaded = loaded if steps is None else loaded.replace(steps=steps)
    require_package("torch", "trimaran.train", "train")
    lines = list[str]()
    with TemporaryDirectory() as folder:
        file, metrics = Path(folder, "job.yaml"), Path(folder, "metrics.jsonl")
        loaded.save(file)
        # A process of its own: forking ranks from a notebook, which has threads, could leave their locks held for ever.
        command = [sys.executable, "-m", "trimaran.engine", str(file), "--metrics", str(metrics)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as process:
            printed = process.stdout or iter(())
            while process.poll() is None:
                try:
                    for line in printed:
                        lines.append(line)
                        if verbose and (not line.startswith("trimaran: ") or "warning: " in line):
                            print(line, end="", flush=True)
                    process.wait()
                except KeyboardInterrupt:
                    process.send_signal(signal.SIGINT)  # stop after this iteration
        records = tuple(json.loads(line) for line in metrics.read_text().splitlines()) if metrics.exists() else ()
    code, output = process.returncode, "".join(lines)
    if code == exit_codes.BAD_JOB:
        raise Mistake(output.rpartition("trimaran: ")[2].strip())
    status: dict[int, Status] = {
        exit_codes.DONE: "ok",
        exit_codes.OUT_OF_MEMORY: "oom",
        exit_codes.INTERRUPTED: "interrupted",
        exit_codes.NOT_FINITE: "nan",
    }
    return TrainingRun(loaded, status.get(code, "fail"), records, output)
