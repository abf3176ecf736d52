"""How fast are texts prepared and samples read, compared with the bare tokenizer and raw slices of the same file?

    python benchmarks/data_prepare.py [MB of text]

The tokenizer is trained here, on the same random prose. Goals: preparing at 0.8 of the bare tokenizer's speed or more;
shuffling 10 million documents in under 10 seconds.
"""

import json
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tokenizers

from trimaran.data.indexed_dataset import IndexedDataset, open_dataset
from trimaran.data.prepare import PrepareOptions, prepare
from trimaran.data.samples import Samples
from trimaran.data.tokenizer import Bytes, HuggingFace

GOAL_RATIO, GOAL_SECONDS = 0.8, 10.0
SEQ_LEN, SAMPLES, DOCUMENTS = 2048, 5000, 10_000_000


def random_prose(megabytes: float) -> list[str]:
    rng = random.Random(1)
    words = ["".join(rng.choices("etaoinshrdlucmfwyp", k=rng.randrange(1, 10))) for _ in range(20_000)]
    texts, size = [], 0.0
    while size < megabytes * 1e6:
        texts.append(" ".join(rng.choices(words, k=rng.randrange(20, 800))))
        size += len(texts[-1])
    return texts


def train_tokenizer(texts: list[str], path: Path) -> HuggingFace:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=8000, special_tokens=["</s>"], show_progress=False)
    made.train_from_iterator(texts[:1000], trainer)
    made.save(str(path))
    return HuggingFace(path)


def shuffle_seconds() -> float:
    """Seconds of the first sample of a set of 10 million documents, which builds the epoch's index arrays."""
    lengths = np.random.default_rng(1).integers(1, 2000, DOCUMENTS)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    stored = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint16), (int(starts[-1]),), (0,))  # takes no memory
    started = time.perf_counter()
    Samples(IndexedDataset(Path("random"), stored, starts), range(DOCUMENTS), SEQ_LEN, 2**16, 1).sample(0)
    return time.perf_counter() - started


def main() -> int:
    texts = random_prose(float(sys.argv[1]) if len(sys.argv) > 1 else 40)
    megabytes = sum(map(len, texts)) / 1e6
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "in.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        tokenizer = train_tokenizer(texts, folder / "tokenizer.json")
        bare, ours = [], []
        for _ in range(3):  # alternating, as the machine may be shared
            started = time.perf_counter()
            for i in range(0, len(texts), 1000):
                tokenizer.tokenizer.encode_batch_fast(texts[i : i + 1000], add_special_tokens=False)
            bare.append(megabytes / (time.perf_counter() - started))
            started = time.perf_counter()
            prepare(PrepareOptions([file], folder / "bpe", tokenizer, append_eod=True, overwrite=True))
            ours.append(megabytes / (time.perf_counter() - started))
        started = time.perf_counter()
        prepare(PrepareOptions([file], folder / "bytes", Bytes(), append_eod=True))
        as_bytes = megabytes / (time.perf_counter() - started)
        opened = open_dataset(folder / "bytes")
        samples = Samples(opened, range(opened.documents), SEQ_LEN, 257, 1)
        samples.sample(0)
        started = time.perf_counter()
        for number in range(SAMPLES):
            samples.sample(number)
        read = SAMPLES / (time.perf_counter() - started)
        places = np.random.default_rng(1).integers(0, len(opened.tokens) - SEQ_LEN - 1, SAMPLES).tolist()
        started = time.perf_counter()
        for place in places:
            opened.tokens[place : place + SEQ_LEN + 1].astype(np.int64)
        raw = SAMPLES / (time.perf_counter() - started)
    ratio = max(ours) / max(bare)
    shuffle = shuffle_seconds()
    print(f"the bare tokenizer       {max(bare):8.1f} MB/s of text")
    print(f"prepare, JSONL to files  {max(ours):8.1f} MB/s, {ratio:.2f} of it (goal {GOAL_RATIO})")
    print(f"prepare --bytes          {as_bytes:8.1f} MB/s")
    print(f"samples of {SEQ_LEN} + 1     {read:8,.0f} /s; raw slices of the memory map {raw:,.0f} /s")
    print(f"shuffling 10 million documents: {shuffle:.1f} s (goal {GOAL_SECONDS:.0f} s)")
    return 0 if ratio >= GOAL_RATIO and shuffle <= GOAL_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
