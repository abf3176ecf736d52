"""One SLURM of four nodes for all tests that ask for it."""

import os
from collections.abc import Iterator

import pytest

from tests.cli.conftest import trimaran  # noqa: F401
from tests.slurm.cluster import SlurmCluster, missing_programs


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """Where SLURM is not installed these tests are skipped, but not in CI, which installs it."""
    if missing := missing_programs():
        reason = f"SLURM is not installed: no {', '.join(missing)}"
        if os.environ.get("TRIMARAN_REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with SlurmCluster() as cluster:
        yield cluster


@pytest.fixture
def allocation(slurm: SlurmCluster) -> Iterator[dict[str, str]]:
    """The environment inside an allocation of three nodes."""
    granted = slurm.command("salloc", "-N3", "--no-shell", "--no-kill").stderr
    job = granted.split("allocation ")[1].split()[0]
    nodes = slurm.command("squeue", "-h", "-j", job, "-o", "%N").stdout.strip()
    yield {**slurm.environment, "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": nodes}
    slurm.command("scancel", job)
