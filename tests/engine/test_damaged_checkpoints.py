"""Checkpoints that somebody or something has changed: no code of theirs runs, damage is seen, and an older whole one is
resumed from."""

import pickle
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

from tests.engine.commands import finished
from tests.engine.jobs import GPT, job_of
from tests.engine.pool import Pool
from tests.engine.test_checkpoint import trained
from tests.engine.trainers import trainer_of
from trimaran.engine.checkpoint.checkpointer import Checkpointer
from trimaran.engine.checkpoint.digests import SUMS
from trimaran.engine.checkpoint.folder import STATE
from trimaran.engine.checkpoint.reader import SavedCheckpoint
from trimaran.spec import Job, Mistake

OLDER, NEWER = "step-00000001", "step-00000002"


def job(folder: Path, layout: dict[str, Any] | None = None) -> Job:
    return job_of(GPT, layout or {}, saving={"folder": str(folder)}, steps=2)


@pytest.fixture(scope="module")
def two_saved(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of iterations 1 and 2."""
    folder = tmp_path_factory.mktemp("saved")
    pool.run(1, trained, job(folder), 2)
    return folder


@pytest.fixture
def saved(two_saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_saved, tmp_path / "saved"))


class Runs:
    """A pickle that makes a file when it is read."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def plant_pickle(step: Path, canary: Path, protocol: int) -> None:
    (step / ".metadata").write_bytes(pickle.dumps(Runs(Path.touch, canary), protocol))


def plant_bytes(step: Path, canary: Path) -> None:
    """An entry of the metadata that is no tensor: DCP unpickles its bytes."""
    metadata = FileSystemReader(step).read_metadata()
    payload = step / "__9_0.distcp"
    torch.save(Runs(Path.touch, canary), payload)
    for name in list(metadata.state_dict_metadata):
        metadata.state_dict_metadata[name] = BytesStorageMetadata()
        metadata.storage_data[MetadataIndex(name)] = _StorageInfo(payload.name, 0, payload.stat().st_size)
    (step / ".metadata").write_bytes(pickle.dumps(metadata))


PAYLOADS: dict[str, Callable[[Path, Path], None]] = {
    "a pickle of protocol 0": lambda step, canary: plant_pickle(step, canary, 0),
    "a pickle of protocol 4": lambda step, canary: plant_pickle(step, canary, 4),
    "an entry of bytes": plant_bytes,
}


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_checkpoint_runs_no_code(payload: str, saved: Path, pool: Pool, tmp_path: Path) -> None:
    shutil.rmtree(saved / OLDER)
    (saved / NEWER / SUMS).unlink()  # whoever plants a payload can also change the digests
    canary = tmp_path / "canary"
    PAYLOADS[payload](saved / NEWER, canary)
    with pytest.raises(Mistake, match=r"damaged: \.metadata refers to .*may have been made to run code"):
        Checkpointer(trainer_of(0, job(saved))).resume()
    reasons = pool.run(2, refusal, job(saved, {"dp": 2, "micro_batch": 2}))
    assert reasons[0] == reasons[1]
    assert ".metadata refers to" in reasons[0]
    with pytest.raises(Mistake, match=r"\.metadata refers to"):
        SavedCheckpoint(saved)  # of sample and weights export
    assert not canary.exists()


def refusal(rank: int, job: Job) -> str:
    try:
        Checkpointer(trainer_of(rank, job)).resume()
    except Mistake as mistake:
        return str(mistake)
    raise AssertionError("it resumed")


def test_without_the_allow_list_the_payload_would_run(saved: Path, tmp_path: Path) -> None:
    """That these payloads are real ones."""
    for number, plant in enumerate([PAYLOADS["a pickle of protocol 0"], PAYLOADS["a pickle of protocol 4"]]):
        canary = tmp_path / str(number)
        plant(saved / NEWER, canary)
        pickle.loads((saved / NEWER / ".metadata").read_bytes())
        assert canary.exists()


@pytest.mark.parametrize("elsewhere", ["/etc/passwd", "../step-00000001/__0_0.distcp"])
def test_a_checkpoint_reads_only_its_own_files(elsewhere: str, saved: Path) -> None:
    metadata = FileSystemReader(saved / NEWER).read_metadata()
    for chunk in metadata.storage_data.values():
        chunk.relative_path = elsewhere
    (saved / NEWER / ".metadata").write_bytes(pickle.dumps(metadata))
    (saved / NEWER / SUMS).unlink()
    shutil.rmtree(saved / OLDER)
    with pytest.raises(Mistake, match="names a file that is not part of a checkpoint"):
        Checkpointer(trainer_of(0, job(saved))).resume()


def test_a_shard_that_is_a_link_is_refused(saved: Path, tmp_path: Path) -> None:
    (saved / NEWER / SHARD).rename(tmp_path / "elsewhere")
    (saved / NEWER / SHARD).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Mistake, match=f"{SHARD} is a link to a file elsewhere"):
        SavedCheckpoint(saved)


def noise(path: Path) -> None:
    """4 KiB in the middle, as a bad block of a disk."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = bytes(i * 151 % 256 for i in range(4096))
    path.write_bytes(content)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def negate_iteration(path: Path) -> None:
    path.write_text(re.sub(r'"iteration": \d', '"iteration": -2', path.read_text()))


SHARD = "__0_0.distcp"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "noise in a shard": (lambda step: noise(step / SHARD), f"{SHARD} does not match its digest"),
    "a flipped bit in a shard": (lambda step: flip(step / SHARD), f"{SHARD} does not match its digest"),
    "a truncated shard": (lambda step: (step / SHARD).write_bytes(b""), f"{SHARD} does not match its digest"),
    "no shard": (lambda step: (step / SHARD).unlink(), f"{SHARD} cannot be read: No such file"),
    "a flipped bit in the metadata": (lambda step: flip(step / ".metadata"), ".metadata "),
    "no metadata": (lambda step: (step / ".metadata").unlink(), ".metadata cannot be read"),
    "half of run.json": (lambda step: (step / STATE).write_text('{"position": {'), "run.json does not say what"),
    "run.json of bytes": (lambda step: (step / STATE).write_bytes(b"\xff\xfe"), "run.json cannot be read"),
    "a negative iteration": (lambda step: negate_iteration(step / STATE), "run.json does not say what"),
    "noise in the digests": (lambda step: (step / SUMS).write_bytes(b"\xff" * 99), "SHA256SUMS cannot be read"),
    "an empty folder": (lambda step: (shutil.rmtree(step), step.mkdir()), "run.json cannot be read: No such file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_resumes_from_the_newest_checkpoint_that_is_whole(
    damage: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, why = DAMAGES[damage]
    spoil(saved / NEWER)
    assert Checkpointer(trainer_of(0, job(saved))).resume().iteration == 1
    told = capsys.readouterr().err
    assert f"{saved / NEWER} is damaged: {why}" in told
    assert told.endswith(f"was renamed to damaged-{NEWER}, and the run resumes from {OLDER}.\n")
    spoil(saved / OLDER)
    with pytest.raises(Mistake, match="has none that is whole to resume from"):
        Checkpointer(trainer_of(0, job(saved))).resume()
    assert (saved / OLDER).exists()  # nothing is touched where nothing is resumed


def test_all_ranks_resume_from_the_same_older_checkpoint(saved: Path, pool: Pool, two_saved: Path) -> None:
    """Damage that one of them sees: each verifies some of the files."""
    noise(saved / NEWER / SHARD)
    layout = {"tp": 2, "dp": 2, "zero": 1, "micro_batch": 2}
    losses = pool.run(4, trained, job(saved, layout), 2)
    alone = pool.run(1, trained, job(two_saved.parent / "none"), 2)[0]
    for found in losses:
        assert found == pytest.approx(alone[1:], rel=1e-5)  # the second step is repeated
    assert sorted(path.name for path in saved.iterdir()) == [f"damaged-{NEWER}", OLDER, NEWER]


def test_a_checkpoint_of_an_earlier_version_has_no_digests_and_loads(saved: Path) -> None:
    (saved / NEWER / SUMS).unlink()
    assert Checkpointer(trainer_of(0, job(saved))).resume().iteration == 2


def test_digests_are_those_of_sha256sum_and_pytorch_reads_the_rest(saved: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=saved / NEWER, check=True, capture_output=True)
    names = set(FileSystemReader(saved / NEWER).read_metadata().state_dict_metadata)
    assert {"weights/embedding.word", "exp_avg/embedding.word"} <= names


def test_verify_says_which_checkpoints_are_whole(saved: Path) -> None:
    arguments = ("tiny", "--set", f"saving.folder={saved}", "--verify")
    code, out, _ = finished(*arguments)
    assert code == 0
    assert [line.split(",")[0] for line in out.splitlines()] == [f"{OLDER}: whole", f"{NEWER}: whole"]
    flip(saved / NEWER / SHARD)
    code, out, err = finished(*arguments)
    assert code == 2
    assert f"{NEWER}: damaged, {SHARD} does not match its digest" in out
    assert err.endswith(f"is damaged; a run would resume from {OLDER}.\n")
    assert not (saved / f"damaged-{NEWER}").exists()


def test_export_and_sample_refuse_a_damaged_checkpoint(saved: Path, trimaran: Any, tmp_path: Path) -> None:
    flip(saved / NEWER / SHARD)
    for command in (["weights", "export", saved, tmp_path / "out"], ["sample", saved, "--bytes", "--prompt", "a"]):
        result = trimaran(*command)
        assert result.code == 2
        assert f"{SHARD} does not match its digest; there is also {OLDER}." in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("seed=99", "its seed was 1234, the job's is 99"),
        ("data.documents=apart", "its data.documents was joined, the job's is apart"),
        ("model.vocab=520", "its vocab is 512, the job's 520"),
    ],
)
def test_resuming_with_other_data_needs_force(change: str, why: str, tmp_path: Path) -> None:
    saving = ("--set", f"saving.folder={tmp_path}")
    assert finished("tiny", "--steps", "1", *saving)[0] == 0
    code, _, err = finished("tiny", "--steps", "2", *saving, "--set", change)
    assert code == 2
    assert why in err
    assert "--force" in err
    code, out, _ = finished("tiny", "--steps", "2", *saving, "--set", change, "--force")
    assert code == 0
    assert " iteration        2/" in out
