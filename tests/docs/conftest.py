"""The real SLURM of the lab's tests and the report's browser, for commands that are marked with them."""

from tests.lab.conftest import slurm
from tests.report.conftest import chromium

__all__ = ["chromium", "slurm"]
