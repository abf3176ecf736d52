"""Every command that README.md and docs/ show is run as a reader would, and prints what they show."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.docs.blocks import BadMark, Command, Given, Written, parse_document
from tests.docs.given import GIVEN
from tests.docs.sentences import command_spans, unknown_word
from tests.engine.commands import ENVIRONMENT
from tests.slurm.cluster import SlurmCluster
from trimaran.cli.main import COMMANDS, app, load_command

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CLONED = ("LICENSE", "README.md", "benchmarks", "docs", "examples", "src", "tests")  # what a clone has
LIMIT_SECONDS = 240.0  # of a command, on a busy machine
MOST_SKIPPED = 8


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_of_a_document_does_what_it_shows(
    document: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    steps = parse_document(document)
    reader = clone_folder(tmp_path)
    wrong: list[str] = []
    for step in steps:
        if isinstance(step, Written):
            (reader / step.name).write_text(step.text)
        elif isinstance(step, Given):
            code, output = run_command(GIVEN[step.name], reader)
            assert code == 0, output
        elif not step.skipped and not step.by:
            assert not (wrong and step.needs), "\n\n".join(wrong)  # a skip must not hide it
            program = request.getfixturevalue(step.needs) if step.needs else None
            extra = program.environment if isinstance(program, SlurmCluster) else {}
            code, output = run_command(step.run_as or step.text, reader, extra)
            wrong += [f"{document.name}:{step.line}: $ {step.text}\n{what}" for what in find_faults(step, code, output)]
    assert not wrong, "\n\n".join(wrong)


def test_few_commands_are_skipped_and_each_has_a_reason() -> None:
    commands = [
        (document, step) for document in DOCUMENTS for step in parse_document(document) if isinstance(step, Command)
    ]
    skipped = [f"{document.name}:{step.line}: {step.skipped}" for document, step in commands if step.skipped]
    assert len(commands) > 50
    assert len(skipped) <= MOST_SKIPPED, "\n".join(skipped)


def test_commands_marked_as_run_elsewhere_are_run_there() -> None:
    """By a script that has it as a line, in another document, or further down in the same."""
    for document in DOCUMENTS:
        for step in parse_document(document):
            if isinstance(step, Command) and step.by:
                assert step.bare in commands_run_by(ROOT / step.by), f"{document.name}:{step.line}: {step.text}"


def commands_run_by(file: Path) -> list[str]:
    if file.suffix != ".md":
        return file.read_text().splitlines()
    commands = [step for step in parse_document(file) if isinstance(step, Command)]
    return [command.bare for command in commands if not command.by and not command.skipped]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_running_text_exist_with_their_options(document: Path) -> None:
    program: Any = typer.main.get_command(app)
    program.commands = {name: load_command(name) for name in COMMANDS}
    wrong = {span: word for span in command_spans(document.read_text()) if (word := unknown_word(span, program))}
    assert not wrong


def test_every_benchmark_that_is_named_can_be_imported() -> None:
    """Imported only: they take minutes, and are run by hand."""
    named = {name for document in DOCUMENTS for name in re.findall(r"benchmarks/\w+\.py", document.read_text())}
    assert named
    script = "import runpy, sys\nfor name in sys.argv[1:]: assert callable(runpy.run_path(name)['main']), name"
    path = os.pathsep.join(filter(None, ("benchmarks", ENVIRONMENT.get("PYTHONPATH"))))  # one may import another
    environment = {**ENVIRONMENT, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", script, *sorted(named)], cwd=ROOT, env=environment, check=True)


@pytest.mark.parametrize(
    ("shown", "real", "found"),
    [
        ("a\nb 1.5 s", "first\na\n  b   1.5 s\nlast", True),
        ("a\nb 1.5 s", "a\nb 1.6 s", False),
        ("a\nc", "a\nb\nc", False),
        ("a\n…\nc", "a\nb\nc", True),
        ("c\n…\na", "a\nb\nc", False),
        ("takes … of 3", "takes 2 of 3", True),
    ],
)
def test_documented_output_is_printed_in_order_and_only_dots_stand_for_more(shown: str, real: str, found: bool) -> None:
    assert (missing_output(shown, real, figures_differ=False) == "") == found


def test_figures_may_differ_only_where_a_mark_says_so() -> None:
    assert missing_output("took 1.5 s, x 1.02", "took 22 s, x 0.9", figures_differ=True) == ""
    assert missing_output("took 1.5 s", "took 22 ms", figures_differ=True) != ""


@pytest.mark.parametrize(
    "text",
    [
        "<!-- run: skip -->\n```sh\ntrue\n```",
        "<!-- run: whatever -->\n```sh\ntrue\n```",
        '<!-- run "false": exit 1 -->\n```sh\ntrue\n```',
        "<!-- run: exit 1 -->\nText without a block.",
        "```\ntrimaran plan\n```",
    ],
)
def test_an_invalid_mark_and_a_command_in_an_untested_block_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(text)
    with pytest.raises(BadMark):
        parse_document(tmp_path / "a.md")


def clone_folder(tmp_path: Path) -> Path:
    """Like a clone, with links to the files; commands write beside them. Home is another folder."""
    reader = tmp_path / "clone"
    reader.mkdir()
    (tmp_path / "home").mkdir()
    for name in CLONED:
        (reader / name).symlink_to(ROOT / name)
    return reader


def run_command(command: str, folder: Path, extra: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Exit code, and stdout with stderr. Processes that outlive a timeout are killed with it."""
    own = {key: value for key, value in ENVIRONMENT.items() if not key.startswith(("TRIMARAN_", "COLUMNS"))}
    path = f"{Path(sys.executable).parent}:{own['PATH']}"
    environment = {**own, **(extra or {}), "PATH": path, "HOME": str(folder.parent / "home"), "OMP_NUM_THREADS": "1"}
    bash = shutil.which("bash")
    assert bash is not None
    process = subprocess.Popen(
        [bash, "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()  # closes the pipe, which would fail some other test
        raise
    return process.returncode, output


def find_faults(command: Command, code: int, output: str) -> list[str]:
    wrong = []
    if code != command.code:
        wrong.append(f"ended with exit code {code}, not {command.code}:\n{output[-2000:]}")
    elif command.shown and (lacking := missing_output(command.shown, output, command.figures_differ)):
        wrong.append(f"did not print, at its place:\n{lacking}\nbut:\n{output[-4000:]}")
    return wrong


def missing_output(shown: str, real: str, figures_differ: bool) -> str:
    """The first documented piece, between two …, that is not printed after the one before. Line breaks and column
    widths are not compared."""
    printed = normalize(real, figures_differ)
    at = 0
    for piece in shown.split("…"):
        wanted = normalize(piece, figures_differ)
        found = printed.find(wanted, at)
        if found < 0:
            return piece.strip()
        at = found + len(wanted)
    return ""


def normalize(text: str, figures_differ: bool) -> str:
    text = re.sub(r"─+", "─", re.sub(r"\s+", " ", text)).strip()
    return re.sub(r"(?:(?<!\S)[-+])?\d[\d.,]*(?:[eE][+-]\d+)?", "#", text) if figures_differ else text
