"""The argument parsers of other trainers, rebuilt from what was extracted of them; and what a script passes."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"
KINDS = {"int": int, "float": float, "str": str}


class Refused(Exception):
    """The parser would have ended the program."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise Refused(message)


def parser_of(trainer: str) -> Parser:
    """With every flag of the trainer's own: its kind, number of words and choices."""
    parser = Parser(allow_abbrev=False)
    for flag, known in json.loads((FIXTURES / "megatron" / f"{trainer}.json").read_text())["flags"].items():
        if known.get("switch"):
            parser.add_argument(flag, action="store_true", dest=flag)
        else:
            kind, choices = KINDS.get(known["type"], str), known["choices"]
            parser.add_argument(flag, dest=flag, type=kind, nargs=known["nargs"], choices=choices)
    return parser


RECORDER = """import json, os, sys
with open(sys.argv[1], "w") as file:
    json.dump({"words": sys.argv[2:], "environment": dict(os.environ)}, file)
"""


def passed_by(script: str, folder: Path, *more: str, **environment: str) -> tuple[list[str], dict[str, str]]:
    """What the script, really run with these words, gives to torchrun: words and variables."""
    recorder, record, file = folder / "recorder.py", folder / "record.json", folder / "train.sh"
    recorder.write_text(RECORDER)
    file.write_text(script, "utf-8")
    variables = {**os.environ, "LAUNCHER": f"{sys.executable} {recorder} {record}", **environment}
    subprocess.run(["bash", str(file), *more], env=variables, check=True, capture_output=True, text=True)
    seen = json.loads(record.read_text())
    return seen["words"], seen["environment"]


def checked_syntax(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
