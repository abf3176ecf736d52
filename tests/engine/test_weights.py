"""Weights exported to transformers and imported from there, compared by the library itself."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.engine.checkpoints import FAMILIES, logits_of, random_checkpoint, resumed, save_after_a_step
from tests.engine.conversions import from_hf, to_hf
from tests.engine.jobs import BLOOM, GPT, LLAMA, job_of
from tests.engine.pool import Pool
from tests.engine.stages import random_tokens, random_weights
from tests.processes import LIMIT_SECONDS
from trimaran.data.source import source_of
from trimaran.engine.checkpoint.reader import SavedCheckpoint, full_shapes
from trimaran.engine.hugging_face.exporting import HfExport, export
from trimaran.engine.hugging_face.families import family_of
from trimaran.engine.hugging_face.folder import HfFolder
from trimaran.engine.hugging_face.importing import import_
from trimaran.engine.loop.batches import batch
from trimaran.engine.model.generate import (
    CachedDecoder,
    SamplingOptions,
    generate,
    load_model,
    sample_token,
    seeded_generator,
)
from trimaran.engine.optimizer.adam import MOMENTS
from trimaran.spec import Mistake, Model
from trimaran.spec.files import load_job

ALL = {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "micro_batch": 2}
LARGE = 2**40
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def exported(folder: Path, out: Path, dtype: str = "fp32", file_bytes: int = LARGE) -> HfExport:
    return export(SavedCheckpoint(folder), out, dtype, file_bytes, None, lambda done, total: None)


def imported(folder: Path, out: Path) -> Any:
    return import_(folder, out, None, lambda done, total: None)


def library(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")


def published(model: Model, folder: Path, dtype: torch.dtype = torch.float32, shard: str = "1GB") -> Any:
    """Random weights, saved by the library itself."""
    config = AutoConfig.for_model(**family_of(model).config(model))
    theirs = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    theirs.load_state_dict(random_weights(theirs), strict=False)  # a tied head is the embedding
    theirs.to(dtype).save_pretrained(folder, max_shard_size=shard)
    return theirs.float().eval()


@pytest.mark.parametrize("model", [GPT, BLOOM, LLAMA], ids=["gpt2", "bloom", "llama"])
def test_what_eight_ranks_saved_has_the_same_logits_in_transformers(
    model: dict[str, Any], pool: Pool, tmp_path: Path
) -> None:
    """Ours read the checkpoint as training does, not as the export does."""
    saving = {"folder": str(tmp_path / "saved")}
    pool.run(8, save_after_a_step, job_of(model, ALL, saving=saving))
    exported(tmp_path / "saved", tmp_path / "out")
    trainer, position = resumed(job_of(model, {}, saving=saving))
    assert position.iteration == 1
    tokens = random_tokens(trainer.job.model, rows=2)
    ours = logits_of(trainer.weights.modules[0], tokens)
    theirs = library(tmp_path / "out")(tokens).logits
    assert (ours - theirs).abs().max() < 1e-5
    assert theirs.abs().max() > 0.1


@pytest.mark.parametrize("name", FAMILIES)
def test_sampling_without_chance_is_the_librarys_greedy_generation(name: str, tmp_path: Path) -> None:
    """Of a checkpoint and of what was exported from it, by a model that reads token by token."""
    random_checkpoint(FAMILIES[name], tmp_path / "saved")
    exported(tmp_path / "saved", tmp_path / "out")
    prompt, count = [5, 17, 3], 12
    theirs = library(tmp_path / "out").generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, 3), do_sample=False, max_new_tokens=count, pad_token_id=0
    )
    expected = theirs[0, len(prompt) :].tolist()
    for source in (SavedCheckpoint(tmp_path / "saved"), HfFolder(tmp_path / "out")):
        sampled = generate(load_model(source), prompt, SamplingOptions(temperature=0), seeded_generator(1))
        assert [next(sampled) for _ in range(count)] == expected


def test_sampling_goes_on_beyond_the_models_length_with_what_it_remembers(tmp_path: Path) -> None:
    """After 16 tokens the older half is forgotten: from there on it is the library's continuation of the newer one."""
    random_checkpoint(GPT, tmp_path / "saved")
    exported(tmp_path / "saved", tmp_path / "out")
    sampled = generate(
        load_model(SavedCheckpoint(tmp_path / "saved")), [5], SamplingOptions(temperature=0), seeded_generator(1)
    )
    text = [5, *(next(sampled) for _ in range(20))]
    remembered = text[17 - 9 : 17]
    theirs = library(tmp_path / "out").generate(
        torch.tensor([remembered]), attention_mask=torch.ones(1, 9), do_sample=False, max_new_tokens=4, pad_token_id=0
    )
    assert text[17:] == theirs[0, 9:].tolist()


@pytest.mark.parametrize("model", [GPT, BLOOM, LLAMA], ids=["gpt2", "bloom", "llama"])
def test_a_prefix_lm_reads_its_prompt_as_a_prefix(model: dict[str, Any], tmp_path: Path) -> None:
    """As in training, where one pass over the whole row has the prefix in its mask."""
    random_checkpoint(model | {"objective": "prefix"}, tmp_path)
    stage = load_model(SavedCheckpoint(tmp_path))
    tokens = random_tokens(stage.model, rows=1)
    prefix = torch.arange(stage.model.seq_len)[None] < 9
    expected = stage.logits(stage.activations(tokens, tokens, prefix=prefix))[-1]
    decoder = CachedDecoder(stage)
    row = tokens[0].tolist()
    decoder.decode(row[:9])
    for token in row[9:]:
        logits = decoder.decode([token])
    assert (logits - expected).abs().max() / expected.abs().max() < 1e-5


def test_sampled_tokens_come_as_often_as_their_chances() -> None:
    logits, stream, draws = torch.tensor([1.0, 4.0, -2.0, 3.0, 2.5]), seeded_generator(7), 4000
    counts = torch.zeros(5)
    for _ in range(draws):
        counts[sample_token(logits, SamplingOptions(temperature=2.0, top_k=3), stream)] += 1
    weights = torch.tensor([0.0, 4.0, 0.0, 3.0, 2.5]).div(2.0).exp() * torch.tensor([0, 1, 0, 1, 1])
    assert (counts / draws - weights / weights.sum()).abs().max() < 0.024  # three standard deviations
    assert counts[[0, 2]].sum() == 0
    assert sample_token(logits, SamplingOptions(temperature=1e-30), stream) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_imported_and_exported_again_nothing_has_changed(name: str, dtype: str, tmp_path: Path) -> None:
    published(Model(**FAMILIES[name]), tmp_path / "theirs", DTYPES[dtype], shard="40KB")
    imported(tmp_path / "theirs", tmp_path / "ours")
    made = exported(tmp_path / "ours", tmp_path / "again", dtype, file_bytes=40_000)
    before, after = (_tensors(tmp_path / folder) for folder in ("theirs", "again"))
    assert len(made.files) > 3
    assert before.keys() == after.keys()
    for tensor, value in before.items():
        assert value.dtype == after[tensor].dtype == DTYPES[dtype]
        assert torch.equal(value, after[tensor]), tensor
    index = json.loads((tmp_path / "again" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in after.values()) == made.bytes
    assert all(key in load_file(tmp_path / "again" / file) for key, file in index["weight_map"].items())
    library(tmp_path / "again")


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_training_goes_on_from_an_imported_model(name: str, tmp_path: Path) -> None:
    """The first loss is the library's on the same tokens; Adam has seen nothing."""
    theirs = published(Model(**FAMILIES[name]), tmp_path / "theirs")
    imported(tmp_path / "theirs", tmp_path / "ours")
    model = load_job(tmp_path / "ours" / "job.yaml").model
    trainer, position = resumed(job_of(model.model_dump(), {}, saving={"folder": str(tmp_path / "ours")}))
    assert (position.iteration, position.consumed) == (0, 0)
    for state in trainer.optimizer.state.values():
        assert state["step"] == 0
        assert not any(state[moment].any() for moment in MOMENTS)
    job = trainer.job
    parts = batch(job, source_of(job), 0, job.batch.size, 0, torch.device("cpu"))
    logits = theirs(parts["tokens"]).logits.detach()
    expected = F.cross_entropy(logits.flatten(0, 1), parts["targets"].flatten())
    assert float(trainer.step(parts).loss) == pytest.approx(float(expected), rel=1e-5)


def test_names_without_the_beginning_that_bare_models_lack_are_known(tmp_path: Path) -> None:
    """As the original GPT-2 and BLOOM were published."""
    model = Model(**GPT)
    published(model, tmp_path / "whole")
    config = AutoConfig.for_model(**family_of(model).config(model))
    bare = AutoModelForCausalLM.from_config(config).transformer
    bare.load_state_dict(random_weights(library(tmp_path / "whole").transformer))
    bare.save_pretrained(tmp_path / "bare")
    names = load_file(tmp_path / "bare" / "model.safetensors")
    assert "wte.weight" in names
    read = HfFolder(tmp_path / "bare")
    assert torch.equal(read.read("embedding.word"), names["wte.weight"])


SIZES = st.integers(1, 3)


@st.composite
def models(draw: Any) -> Model:
    groups, shared, dim = draw(SIZES), draw(SIZES), 2 * draw(SIZES)
    common = {"layers": draw(SIZES), "vocab": draw(st.integers(2, 300)), "seq_len": draw(st.integers(1, 40))}
    common |= {"hidden": groups * shared * dim, "heads": groups * shared, "tied_embeddings": draw(st.booleans())}
    width = {"ffn_hidden": draw(st.integers(1, 40))}
    families = {
        "gpt2": width,
        "bloom": {"position": "alibi", "embedding_norm": True},
        "llama": {"position": "rotary", "norm": "rmsnorm", "mlp": "swiglu", "kv_heads": groups, **width},
    }
    family = draw(st.sampled_from(list(families)))
    bias = {"bias": draw(st.booleans())} if family == "llama" else {}
    return Model(**common, **families[family], **bias)


@settings(max_examples=60)
@given(models())
def test_every_model_of_a_family_goes_there_and_back(model: Model) -> None:
    """Weights and config; the names and shapes are those of the library's own model."""
    family = family_of(model)
    config = family.config(model)
    with torch.device("meta"):
        library_model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    expected = {name: value.shape for name, value in library_model.named_parameters()}
    theirs = {name: torch.randn(shape) for name, shape in expected.items()}
    ours = from_hf(family, model, theirs)
    assert {name: tuple(value.shape) for name, value in ours.items()} == full_shapes(model)
    back = to_hf(family, model, ours)
    assert back.keys() == theirs.keys()
    assert all(torch.equal(back[name], value) for name, value in theirs.items())
    assert family.model(config, model.name, "The config") == model


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (GPT | {"bias": False}, "with learned positions it would be GPT-2, but its bias is False, but in GPT-2"),
        (GPT | {"norm": "rmsnorm"}, "norm is rmsnorm"),
        (GPT | {"kv_heads": 2}, "kv_heads is 2, but in GPT-2 it is 4"),
        (BLOOM | {"embedding_norm": False}, "it would be BLOOM, but its embedding_norm is False"),
        (BLOOM | {"ffn_hidden": 64}, "ffn_hidden is 64, but in BLOOM it is 128"),
        (LLAMA | {"mlp": "gelu"}, "it would be Llama, but its mlp is gelu"),
    ],
)
def test_a_model_of_no_family_is_told_what_does_not_fit(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Mistake, match=words):
        family_of(Model(**changes))


KILLED = """
import os, signal, sys
from pathlib import Path
from trimaran.engine.hugging_face.exporting import export
from trimaran.engine.checkpoint.reader import SavedCheckpoint

def tell(done, total):
    if done > total / 2:
        os.kill(os.getpid(), signal.SIGKILL)

export(SavedCheckpoint(Path(sys.argv[1])), Path(sys.argv[2]), "fp32", 10_000, None, tell)
"""


def test_an_export_killed_in_the_middle_leaves_no_folder_and_the_next_one_is_whole(tmp_path: Path) -> None:
    random_checkpoint(GPT, tmp_path / "saved")
    arguments = [sys.executable, "-c", KILLED, tmp_path / "saved", tmp_path / "out"]
    assert subprocess.run(arguments, timeout=LIMIT_SECONDS, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    exported(tmp_path / "saved", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "saved"]
