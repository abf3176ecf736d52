"""Marks of README.md, kept out of its source, which people read too: the files its reader has, and how commands are run
that would take minutes or need more than a laptop. A key is a part of the command; CONTRIBUTING.md lists the marks."""

GIVEN_TO_READER = (
    "mine.yaml",
    "few.sqlite",
    "wiki.jsonl.zst",
    "tokenizer.json",
    "run.log.gz",
    "notes.md",
    "trimaran.sqlite",
)

MARKS = {
    "make ": "by .ci/run",
    "train tiny": "with --help",
    "sweep layouts": "with --dry-run",
    "probe --ranks 8": "with --help",
    "weights export": "by docs/training.md",
    "sample": "by docs/tutorial.md",
    "memory": "with --help",
    "learn": "with --ledger few.sqlite",
    "report": "by docs/report.md",
    "shape": "with --hidden 12288 --heads 96 --layers 96",
}
