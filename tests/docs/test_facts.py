"""What the documents state besides commands: links that lead somewhere, and the constants of the cost model."""

import re
from pathlib import Path

import pytest

from tests.docs.test_commands import DOCUMENTS, ROOT
from trimaran.cost.constants import PRIORS

README_BYTES = 9216


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", document.read_text()):
        name, _, heading = target.partition("#")
        file = document.parent / name if name else document
        assert file.exists(), target
        assert not heading or heading in headings(file), target


def test_the_readme_can_be_read_in_one_sitting() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= README_BYTES


def headings(document: Path) -> list[str]:
    """As GitHub names them in links."""
    found = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in found]


def test_the_constants_of_the_cost_model_are_listed_as_they_are() -> None:
    text = (ROOT / "docs" / "cost-model.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \| (.+) \|$", text, re.MULTILINE)
    listed = {name: (float(value), float(spread), meaning) for name, value, spread, meaning in rows}
    assert listed == {name: (prior.value, prior.spread, prior.meaning) for name, prior in PRIORS.items()}
