"""What a command that runs the engine needs: PyTorch, and a job that is for our own trainer."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimaran.spec import Job


def need_torch(command: str) -> None:
    """Planning installs without PyTorch; a command that runs the engine says so where it is missing."""
    need("torch", "PyTorch", f"`{command}`", "trimaran[train]")


def need(module: str, name: str, what: str, package: str) -> None:
    if find_spec(module) is None:
        from trimaran.spec import Mistake

        raise Mistake(f"{what} needs {name}, which is not installed here: pip install '{package}'.")


def need_our_trainer(job: "Job") -> None:
    from trimaran.spec import Mistake

    if job.trainer.name != "trimaran":
        raise Mistake(
            f"The job {job.name} is for {job.trainer.name}, but the engine is our own trainer;"
            " add --set trainer=trimaran, or ask `trimaran explain` for the cost model's prediction."
        )
