"""The Python standard library's own source, as JSON lines: a real text that is on every machine.

    python examples/stdlib/collect.py > stdlib.jsonl

The modules are those in `modules.txt`, in that order; the last ones become the validation set. Python versions differ a
little in them, so losses can be compared between runs on one machine, and to about 0.05 between machines.
"""

import json
import sysconfig
from pathlib import Path


def main() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    for name in (Path(__file__).parent / "modules.txt").read_text().split():
        print(json.dumps({"text": (library / f"{name}.py").read_text("utf-8")}))


if __name__ == "__main__":
    main()
