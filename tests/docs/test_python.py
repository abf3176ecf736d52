"""The Python of docs/python.md is run from top to bottom in one process, as in a notebook, and prints what it shows."""

import json
import re
import sys
from pathlib import Path

from tests.docs.blocks import Given, parse_document
from tests.docs.given import GIVEN
from tests.docs.test_commands import ROOT, clone_folder, missing_output, run_command

DOCUMENT = ROOT / "docs" / "python.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
END = "---- end of a block ----"

# A last line that is an expression shows its value, as a notebook's cell does.
RUN = f"""
import ast, json, sys
names = {{}}
for code in json.load(open("blocks.json")):
    lines = ast.parse(code).body
    shown = lines.pop() if isinstance(lines[-1], ast.Expr) else None
    exec(compile(ast.Module(lines, []), "docs/python.md", "exec"), names)
    value = shown and eval(compile(ast.Expression(shown.value), "docs/python.md", "eval"), names)
    print("" if value is None else repr(value))
    print({END!r}, flush=True)
"""


def test_the_python_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    blocks = [(match[1], match[2]) for match in _BLOCK.finditer(DOCUMENT.read_text())]
    assert sum(shown is not None for _, shown in blocks) >= 8
    reader = clone_folder(tmp_path)
    for step in parse_document(DOCUMENT):
        if isinstance(step, Given):
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
