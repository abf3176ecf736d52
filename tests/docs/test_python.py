"""The Python of a document is run from top to bottom in one process, as in a notebook, and prints what it shows."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import Given, parse_document
from tests.docs.given import GIVEN
from tests.docs.test_commands import ROOT, clone_folder, missing_output, run_command

_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
END = "---- end of a block ----"

# A last line that is an expression shows its value, as a notebook's cell does.
RUN = f"""
import ast, json, sys
names = {{}}
for code in json.load(open("blocks.json")):
    lines = ast.parse(code).body
    shown = lines.pop() if isinstance(lines[-1], ast.Expr) else None
    exec(compile(ast.Module(lines, []), "document", "exec"), names)
    value = shown and eval(compile(ast.Expression(shown.value), "document", "eval"), names)
    print("" if value is None else repr(value))
    print({END!r}, flush=True)
"""


@pytest.mark.parametrize(("name", "least_shown"), [("README.md", 1), ("docs/python.md", 8)])
def test_the_python_of_a_document_prints_what_it_shows(name: str, least_shown: int, tmp_path: Path) -> None:
    document = ROOT / name
    blocks = [(match[1], match[2]) for match in _BLOCK.finditer(document.read_text())]
    assert sum(shown is not None for _, shown in blocks) >= least_shown
    reader = clone_folder(tmp_path)
    for step in parse_document(document):
        if isinstance(step, Given) and any(step.name in code for code, _ in blocks):
            code, output = run_command(GIVEN[step.name], reader)
            assert code == 0, output
    (reader / "blocks.json").write_text(json.dumps([code for code, _ in blocks]))
    (reader / "run.py").write_text(RUN)
    code, output = run_command(f"{sys.executable} run.py", reader)
    assert code == 0, output
    for source, shown in blocks:
        printed, end, output = output.partition(f"{END}\n")
        assert end, source
        assert not missing_output(shown or "", printed, figures_differ=False), f"{source}\nprinted:\n{printed}"
