"""What each room's introduction, pyproject.toml and docs/architecture.md say of the rooms is what the files import."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "trimaran"
ROOMS = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
NONE, ALL = "nothing of ours", "everything"


@cache
def imported(room: str) -> frozenset[str]:
    """The other rooms that the files of a room import, also inside functions and only for types."""
    names = set()
    for path in (SOURCE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path} has a relative import"
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = [name.split(".") for name in names if name.startswith("trimaran.")]
    return frozenset(part[1] for part in parts) & frozenset(ROOMS) - {room}


def introduction(room: str) -> str:
    return ast.get_docstring(ast.parse((SOURCE / room / "__init__.py").read_text("utf-8"))) or ""


def layers() -> list[set[str]]:
    """From the contract that lint-imports enforces, the highest first; `api` is a module beside the rooms."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    stated = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [{name.strip().removeprefix("trimaran.") for name in layer.split("|")} for layer in stated]


@pytest.mark.parametrize("room", ROOMS)
def test_an_introduction_names_exactly_the_rooms_that_are_imported(room: str) -> None:
    stated = re.search(r"^May import: ([\w, ]+)\.$", introduction(room), re.M)
    assert stated, f"{room}/__init__.py lacks a line `May import: spec, cost.` or `May import: {NONE}.`"
    if stated[1] == ALL:
        assert room == "cli"
    else:
        assert (set() if stated[1] == NONE else set(stated[1].split(", "))) == imported(room)


@pytest.mark.parametrize("room", ROOMS)
def test_an_introduction_says_where_to_start_reading(room: str) -> None:
    text = introduction(room)
    assert text.startswith(f"{room}: ")
    files = re.findall(r"([\w/]+\.py)\b", text.partition("Start reading: ")[2])
    assert files
    assert [file for file in files if not any((folder / file).is_file() for folder in (SOURCE / room, SOURCE))] == []


def test_every_room_has_a_layer_above_what_it_imports() -> None:
    height = {name: -number for number, layer in enumerate(layers()) for name in layer}
    assert sorted(height.keys() - {"api"}) == ROOMS
    assert {(room, other) for room in ROOMS for other in imported(room) if height[other] >= height[room]} == set()


def test_the_architecture_page_lists_the_rooms_and_their_layers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.M)) == ROOMS
    shown = next(block for block in re.findall(r"^```\n(.*?)^```", page, re.M | re.S) if block.endswith("spec\n"))
    assert [set(line.split(", ")) for line in shown.splitlines()] == layers()
