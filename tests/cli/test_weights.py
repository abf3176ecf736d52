"""`trimaran weights` and `trimaran sample` as a user calls them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.cli.conftest import Command
from tests.engine.checkpoints import random_checkpoint
from tests.engine.commands import finished, losses
from tests.engine.jobs import GPT, LLAMA

TEXT = "A trimaran has three hulls, and so has this. Three hulls are fast.\n"
CHARACTERS = GPT | {"vocab": 257}


@pytest.fixture
def llama(trimaran: Command, tmp_path: Path) -> Path:
    """A folder in Hugging Face's format."""
    random_checkpoint(LLAMA, tmp_path / "saved")
    assert trimaran("weights", "export", "saved", "llama").code == 0
    return tmp_path / "llama"


def test_a_run_with_a_tokenizer_speaks_in_transformers_as_it_does_here(trimaran: Command, tmp_path: Path) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEXT] * 9, trainer)
    made.save("bpe.json")
    Path("a.txt").write_text(TEXT * 9)
    assert trimaran("data", "prepare", "a.txt", "-o", "set", "--tokenizer", "bpe.json", "--append-eod").code == 0
    data = {"source": str(tmp_path / "set"), "validation": 0}
    random_checkpoint(GPT | {"vocab": made.get_vocab_size()}, tmp_path / "saved", data=data)

    ran = trimaran("weights", "export", "saved", "out", "--to", "hf")
    assert ran.code == 0, ran.err
    assert "GPT-2" in ran.out
    their_tokenizer, theirs = AutoTokenizer.from_pretrained("out"), AutoModelForCausalLM.from_pretrained("out")
    begin = their_tokenizer("Three", return_tensors="pt")
    assert theirs.config.eos_token_id == their_tokenizer.eos_token_id == made.token_to_id("<|endoftext|>")
    expected = theirs.generate(**begin, do_sample=False, max_new_tokens=9, pad_token_id=0)[0]
    for source in ("saved", "saved/step-00000000", "out"):
        asked = ("sample", source, "--prompt", "Three", "--temperature", 0, "--tokens", 9)
        answer = json.loads(trimaran(*asked, "--json").out)
        assert answer["prompt_tokens"] + answer["samples"][0]["tokens"] == expected.tolist()
        assert answer["samples"][0]["text"] == their_tokenizer.decode(expected)
        assert trimaran(*asked).out == answer["samples"][0]["text"] + "\n"


def test_the_seed_decides_the_text_and_characters_of_several_tokens_come_whole(
    trimaran: Command, tmp_path: Path
) -> None:
    """Bytes at random are seldom UTF-8: what is streamed is what the whole decodes to."""
    random_checkpoint(CHARACTERS, tmp_path / "saved")
    asked = ("sample", "saved", "--prompt", "naïve", "--tokens", 40, "--temperature", 3, "--top-k", 0, "--count", 2)
    first, again, other = (trimaran(*asked, "--seed", seed).out for seed in (1, 1, 2))
    assert first == again
    assert first != other
    samples = json.loads(trimaran(*asked, "--seed", 1, "--json").out)["samples"]
    assert first == f"{samples[0]['text']}\n---\n{samples[1]['text']}\n"
    decoded = bytes(token for token in samples[0]["tokens"] if token < 256).decode("utf-8", "replace")
    assert samples[0]["text"] == "naïve" + decoded


def test_an_imported_model_is_trained_and_exported(trimaran: Command, llama: Path, tmp_path: Path) -> None:
    """By a real process; the name of the job's folder is good from anywhere."""
    ran = trimaran("weights", "import", "llama", "tuned", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["parameters"] == sum(
        value.numel() for value in load_file("llama/model.safetensors").values()
    )
    code, out, err = finished(str(tmp_path / "tuned" / "job.yaml"), "--steps", "2")
    assert (code, err) == (0, "")
    assert len(losses(out)) == 2
    ran = trimaran("weights", "export", "tuned", "out", "--dtype", "bf16", "--json")
    assert json.loads(ran.out)["iteration"] == 2
    before, after = (load_file(f"{folder}/model.safetensors") for folder in ("llama", "out"))
    moved = [name for name in before if not torch.equal(before[name].bfloat16(), after[name])]
    assert moved


def test_exports_that_cannot_be_get_a_sentence(trimaran: Command, tmp_path: Path) -> None:
    random_checkpoint(GPT | {"bias": False}, tmp_path / "odd")
    random_checkpoint(GPT, tmp_path / "saved")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()
    for source, out, words in (
        ("nowhere", "out", "nowhere is not a folder"),
        ("empty", "out", "empty holds no complete checkpoint"),
        ("odd", "out", "its bias is False, but in GPT-2 it is True"),
        ("saved", "full", "full is not empty, and nothing is overwritten"),
        ("saved", "full/file", "full/file is a file"),
        ("saved", "full/file/out", "cannot be written: Not a directory"),
    ):
        refused(trimaran("weights", "export", source, out), words)
    assert not Path("out").exists()
    assert trimaran("weights", "export", "saved", "empty").code == 0
    for path in Path("saved/step-00000000").glob("*.distcp"):
        path.write_bytes(path.read_bytes()[:100])
    why = "is damaged, or was removed for a newer one: embedding.word cannot be read"
    refused(trimaran("weights", "export", "saved", "out"), why)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full", "odd", "saved"]


def config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        values = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in values.items() if value != "gone"}))

    return change


def tensors(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        values = load_file(path) | {name.replace("__", "."): value for name, value in changes.items()}
        save_file({name: value for name, value in values.items() if value is not None}, path)

    return change


def only_bin(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def split(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = {"weight_map": {"model.norm.weight": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


BAD_FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "another family": (config(model_type="qwen2"), "is of model_type 'qwen2', but only gpt2, bloom, llama"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{") and None, "is not valid JSON"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "no shape": (config(num_hidden_layers="gone"), "has no num_hidden_layers"),
    "a shape in words": (config(num_hidden_layers="four"), "layers is 'four', but input should be a valid integer"),
    "heads that do not divide": (config(num_attention_heads=7), "does not divide into 7 heads"),
    "stretched positions": (config(rope_scaling={"rope_type": "llama3"}), "has rope_scaling = {'rope_type': 'llama3'}"),
    "another epsilon": (config(rms_norm_eps=1e-6), "rms_norm_eps = 1e-06, but Trimaran's Llama has 1e-05"),
    "half the biases": (config(mlp_bias=True), "has mlp_bias = True, but Trimaran's Llama has False"),
    "another head": (config(head_dim=16), "has head_dim = 16"),
    "quantized": (config(quantization_config={"bits": 4}), "has quantization_config"),
    "a missing tensor": (
        tensors(model__norm__weight=None),
        "lacks model.norm.weight, which a Llama with its config.json has",
    ),
    "another shape": (tensors(model__norm__weight=torch.ones(5)), r"model.norm.weight has the shape (5,), but"),
    "a type": (tensors(model__norm__weight=torch.ones(32).double()), "is stored as F64; Trimaran reads fp32"),
    "a stranger": (
        tensors(model__adapter=torch.ones(1)),
        "holds model.adapter, which a Llama with its config.json does not have",
    ),
    "only a pickle": (only_bin, "can run arbitrary code when it is loaded"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "there are no weights in it"),
    "cut off": (cut, "model.safetensors is damaged or truncated"),
    "a missing file": (split, "b.safetensors is missing, though"),
}


def test_folders_that_cannot_be_imported_get_a_sentence(trimaran: Command, llama: Path, tmp_path: Path) -> None:
    from shutil import copytree, rmtree

    for spoil, words in BAD_FOLDERS.values():
        folder = copytree(llama, tmp_path / "bad")
        spoil(folder)
        refused(trimaran("weights", "import", "bad", "out"), words)
        rmtree(folder)
    refused(trimaran("weights", "import", "nowhere", "out"), "nowhere is not a folder")
    refused(trimaran("weights", "import", "llama", "saved"), "saved is not empty")
    refused(trimaran("weights", "import", "llama", "out", "--data", "nowhere"), "nowhere.idx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama", "saved"]


def test_samples_that_cannot_be_get_a_sentence(trimaran: Command, llama: Path, tmp_path: Path) -> None:
    Path("words.json").write_text(
        tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 999}, unk_token="a")).to_str()
    )
    random_checkpoint(GPT | {"vocab": 400}, tmp_path / "large")
    named = ("--tokenizer", "words.json")
    for arguments, words in (
        (["nowhere"], "nowhere is not a folder"),
        (["large"], "The tokenizer of this vocabulary of 400 is not known"),
        (["large", *named], "There is nothing to continue"),
        (["large", *named, "--bytes"], "Both --tokenizer and --bytes"),
        (["large", *named, "--prompt", "b"], "the token 999, but the model's vocabulary has 400"),
    ):
        refused(trimaran("sample", *arguments), words)


def refused(ran: Any, words: str) -> None:
    assert ran.code == 2
    assert ran.out == ""
    assert words in ran.err
    assert len(ran.err.strip().splitlines()) == 1
