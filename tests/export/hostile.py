"""Text that wants to leave its quotes, in every place of a Job that takes text; and what a script of it really runs."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from hypothesis import strategies as st

from trimaran.spec import Job
from trimaran.spec.base import Spec
from trimaran.spec.cluster import Condition
from trimaran.spec.files import load_job

CANARY = "canary"  # a file that exists once any of the text was run
VARIABLE = "X_HOSTILE"
PIECES = (
    f"$(touch {CANARY})",
    f"`touch {CANARY}`",
    f"\ntouch {CANARY}\n",
    f"\r\ntouch {CANARY}\r\n",
    f";touch {CANARY};",
    f"'; touch {CANARY}; '",
    f'"; touch {CANARY}; "',
    f"|touch {CANARY}&",
    f")\ntouch {CANARY}\n(",
    f"}}\ntouch {CANARY} #",
    f"\nEND_OF_JOB\ntouch {CANARY}\n",
    f"\n#SBATCH --wrap='touch {CANARY}'\n",
    f"a[$(touch {CANARY})]",
    "\n# Job: 1\n# Model: 2\n",
    *("\n", "\r", "\t", "\v", "\f", "\x1b[31m", "\x7f", "\x85", "\u2028", "\u2029", "\u202e", "\ufeff"),
    *("'", '"', "\\", "$", "`", "#", "!", "~", "*", "-", "--wrap=x", "=", "[0]=", "%", " ", "é", "😀"),
    "x" * 3000,
)
texts = st.lists(st.sampled_from(PIECES), max_size=6).map("".join) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=20
)


def victim() -> Job:
    """A Job that every target can express, with something at each place that may hold text."""
    job = load_job("gpt-1b3-h200")
    state = Condition(name="slow", until="", slowdown=1.1)
    return job.replace(
        cluster=job.cluster.replace(conditions=[state.model_dump()]).model_dump(),
        saving={"folder": "checkpoints", "every": 100},
    )


def fill(
    job: Job, text: Callable[[str], str], choose: Callable[[str, list[Any]], Any] = lambda _, kinds: kinds[0]
) -> Job:
    """Its texts replaced by text(dotted path); `choose` picks where a field takes text of several types."""
    return Job.of(_filled(Job, job.model_dump(), "", text, choose))


def places(job: Job) -> list[str]:
    """Dotted paths; those of a mapping's keys end in `{}`, of its values in `[]`."""
    found: list[str] = []
    for kind in (0, -1):
        fill(job, lambda path: (found.append(path), f"text {len(found)}")[1], lambda _, kinds, kind=kind: kinds[kind])
    return list(dict.fromkeys(found))


def _filled(kind: Any, value: Any, path: str, text: Callable[[str], str], choose: Any) -> Any:
    if kind is str:
        return text(path)
    if isinstance(kind, type) and issubclass(kind, Spec):
        before = f"{path}." if path else ""
        return {
            name: _filled(field.annotation, value[name], before + name, text, choose)
            for name, field in kind.model_fields.items()
        }
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        kinds = [each for each in inner if each is not NoneType and holds_text(each)]
        return _filled(choose(path, kinds), value, path, text, choose) if kinds else value
    if origin is dict and inner[0] is str:
        item = (lambda: text(f"{path}[]")) if inner[1] is str else lambda: 1.0
        return {text(f"{path}{{}}"): item(), VARIABLE: item()}
    if origin is tuple:
        return tuple(_filled(inner[0], item, path, text, choose) for item in value) if holds_text(kind) else value
    assert not holds_text(kind), f"{path} holds text in a way that this does not know: {kind}"
    return value


def holds_text(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, Spec):
        return any(holds_text(field.annotation) for field in kind.model_fields.values())
    return kind is str or any(holds_text(inner) for inner in get_args(kind))


class Called(NamedTuple):
    words: list[str]
    environment: dict[str, str]


STUBS = ("python", "torchrun", "srun", "sbatch", "trimaran")
STUB = """#!/bin/bash
printf '%s\\0' "$(basename "$0")" "$@" > '{record}.words'
/usr/bin/env -0 > '{record}.environment'
"""


class Sandbox:
    """A folder with the exported files, where scripts start stubs that record how they are called."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.folder, self.record, self.stubs = folder / "exported", folder / "record", folder / "stubs"
        for made in (self.folder, self.stubs):
            made.mkdir()
        for name in STUBS:
            self._program(name, STUB.format(record=self.record))
        self._program("scontrol", "#!/bin/bash\necho first-node\n")
        for name, content in files.items():
            (self.folder / name).write_bytes(content.encode())

    def _program(self, name: str, text: str) -> None:
        (self.stubs / name).write_text(text)
        (self.stubs / name).chmod(0o755)

    def scripts(self) -> Iterator[Path]:
        yield from sorted(path for path in self.folder.iterdir() if path.suffix in (".sh", ".slurm"))

    def call(self, script: Path) -> Called:
        """How the script, which must be valid shell and end well, called its stub."""
        environment = {
            "PATH": f"{self.stubs}:/usr/bin:/bin",
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "TOKENIZER": "tokenizer",
            "DATA_PATH": "tokens",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NAME": "job",
            "SLURM_JOB_NODELIST": "first-node",
            "SLURM_SUBMIT_DIR": str(self.folder),
        }
        for command in (["bash", "-n", str(script)], ["bash", str(script)]):
            done = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, check=False)
            assert (done.returncode, done.stderr) == (0, b"")
        words = Path(f"{self.record}.words").read_bytes().split(b"\0")[:-1]
        lines = Path(f"{self.record}.environment").read_bytes().split(b"\0")[:-1]
        pairs = (line.decode().partition("=") for line in lines)
        return Called([word.decode() for word in words], {name: value for name, _, value in pairs})
