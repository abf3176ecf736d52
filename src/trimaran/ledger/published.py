"""The measurements that ship with the package, read by the same reader as anybody's CSV."""

from importlib.resources import files

from trimaran.ledger.reading import Reading, joined
from trimaran.ledger.tables.csv import read_csv

FILES = ("published.csv", "vtrain_single_node_a100.csv")


def published(names: tuple[str, ...] = FILES) -> Reading:
    folder = files("trimaran") / "published"
    return joined(read_csv((folder / name).read_text("utf-8"), name, kind="published") for name in names)
