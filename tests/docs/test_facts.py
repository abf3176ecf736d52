"""What the documents state besides commands: links that lead somewhere, rooms, and the constants of the cost model."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.test_commands import DOCUMENTS, ROOT
from trimaran.cost.constants import PRIORS

README_BYTES = 9216
CODE = ("src", "tests", "benchmarks", "examples")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", document.read_text()):
        name, _, heading = target.partition("#")
        file = document.parent / name if name else document
        assert file.exists(), target
        assert not heading or heading in headings(file), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_python_file_that_is_named_exists(document: Path) -> None:
    if document.parent.name == "notes":
        return  # history: files have moved since
    files = {str(file.relative_to(ROOT)) for folder in CODE for file in (ROOT / folder).rglob("*.py")}
    for name in re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)+\.py)`", document.read_text()):
        assert any(f"/{file}".endswith(f"/{name}") for file in files), name


def test_the_readme_is_short_and_has_no_marks_in_its_source() -> None:
    source = (ROOT / "README.md").read_bytes()
    assert len(source) <= README_BYTES
    assert b"<!--" not in source


def headings(document: Path) -> list[str]:
    """As GitHub names them in links."""
    found = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in found]


def test_the_constants_of_the_cost_model_are_listed_as_they_are() -> None:
    text = (ROOT / "docs" / "cost-model.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \| (.+) \|$", text, re.MULTILINE)
    listed = {name: (float(value), float(spread), meaning) for name, value, spread, meaning in rows}
    assert listed == {name: (prior.value, prior.spread, prior.meaning) for name, prior in PRIORS.items()}


def test_architecture_lists_every_room_and_the_layers_that_are_enforced() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {folder.parent.name for folder in (ROOT / "src" / "trimaran").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == rooms
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    drawn = [set(line.split(", ")) for line in text.split("```")[1].strip().splitlines()]
    assert drawn == [set(layer.replace("trimaran.", "").split(" | ")) for layer in layers]
