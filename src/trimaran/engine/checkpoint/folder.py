"""What is in the folder of a run's checkpoints, and in run.json of each. Without torch.

`folder/step-00000100/` is complete, because it is renamed to this only after everything in it is on disk. What was
being written when a run died has another name, and is removed by the next save.
"""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trimaran.data.source import fingerprint
from trimaran.spec import Job, Mistake, Model

STATE = "run.json"
COMPLETE = re.compile(r"step-\d{8,}")


class DamagedError(Exception):
    """A checkpoint that cannot be resumed from; says why."""


@dataclass(frozen=True)
class TrainState:
    """Everything of a run that is not a tensor."""

    iteration: int = 0
    consumed: int = 0  # samples
    skipped: int = 0
    nan: int = 0
    loss_scale: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SavedRun:
    """What run.json holds."""

    state: TrainState
    job: Job
    data: dict[str, str] | None  # fingerprints of its datasets; None: saved by a version that stored none


def write_state(checkpoint: Path, state: TrainState, job: Job) -> None:
    values = {"position": asdict(state), "job": job.model_dump(mode="json"), "data": fingerprint(job)}
    (checkpoint / STATE).write_text(json.dumps(values, indent=1))


def read_state(checkpoint: Path) -> str:
    try:
        return (checkpoint / STATE).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise DamagedError(f"{STATE} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def parse_state(text: str) -> SavedRun:
    try:
        values: dict[str, Any] = json.loads(text)
        state = TrainState(**values["position"])
        job = Job.from_json(json.dumps(values["job"]), trusted=True)
        if min(state.iteration, state.consumed, state.skipped, state.nan) < 0:
            raise ValueError
        return SavedRun(state, job, values.get("data"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedError(f"{STATE} does not say what was saved") from None


def complete_checkpoints(folder: Path) -> list[Path]:
    """From the oldest to the newest."""
    complete = [path for path in folder.glob("step-*") if COMPLETE.fullmatch(path.name)]
    return sorted(complete, key=lambda path: int(path.name[5:]))


def newest_checkpoint(folder: Path) -> Path | None:
    return next(reversed(complete_checkpoints(folder)), None)


def check_same_run(saved: SavedRun, job: Job, path: Path, force: bool) -> None:
    """That the job is of the checkpoint's model, and goes on with its seed and data. `force`: with other data, another
    seed or a vocabulary of another size. Names and padding may differ, because they change no value."""
    ours = job.model
    for name in Model.model_fields:
        was, now = getattr(saved.job.model, name), getattr(ours, name)
        if was != now and name not in ("name", "source", "padded_vocab") and not (force and name == "vocab"):
            forced = "; --force resumes all the same, and new rows keep their initial values" if name == "vocab" else ""
            raise Mistake(
                f"The checkpoint {path} is of another model: its {name} is {was}, the job's {now};"
                f" give the job another saving.folder, or the model of the checkpoint{forced}."
            )
    difference = data_difference(saved, job)
    if difference and saved.state.consumed and not force:
        raise Mistake(
            f"The checkpoint {path} was trained with other data: {difference}; --force resumes with the job's, after as"
            " many samples as were consumed, and another saving.folder begins anew."
        )


def data_difference(saved: SavedRun, job: Job) -> str:
    """What would give the run other samples than before, in a few words; '' where they are the same."""
    if saved.job.seed != job.seed:
        return f"its seed was {saved.job.seed}, the job's is {job.seed}"
    for name in type(job.data).model_fields:
        was, now = getattr(saved.job.data, name), getattr(job.data, name)
        if was != now and not (name == "source" and saved.data is not None):  # a dataset may have moved
            return f"its data.{name} was {was}, the job's is {now}"
    if saved.data is not None and saved.data != (now_data := fingerprint(job)):
        if list(saved.data) != list(now_data):
            return f"its data.source was {saved.job.data.source}, the job's is {job.data.source}"
        return f"the tokens of {job.data.source} are not those that it was trained on"
    return ""
