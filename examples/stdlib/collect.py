"""The Python standard library's own source, as JSON lines: a real text that is on every machine.

    python examples/stdlib/collect.py > stdlib.jsonl

The modules are those in `modules.txt`, in that order; the last ones become the validation set. Python versions differ a
little in them, and some lack a few, so losses can be compared between runs on one machine, and to about 0.05 between
machines.
"""

import json
import sys
import sysconfig
from pathlib import Path


def main() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    names = (Path(__file__).parent / "modules.txt").read_text().split()
    files = [library / f"{name}.py" for name in names]
    for file in files:
        if file.exists():
            print(json.dumps({"text": file.read_text("utf-8")}))
        else:
            print(f"{file} is not there, and left out.", file=sys.stderr)


if __name__ == "__main__":
    main()
