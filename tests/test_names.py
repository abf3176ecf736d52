"""One class per name: whoever searches for a class finds one definition."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "trimaran"


def test_every_class_has_a_name_of_its_own() -> None:
    files = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(str(path.relative_to(SOURCE)))
    assert len(files) > 100
    assert {name: where for name, where in files.items() if len(where) > 1} == {}
