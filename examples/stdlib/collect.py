"""The source of the Python standard library as JSON lines: real text that every machine has.

    python examples/stdlib/collect.py > stdlib.jsonl

The modules are those in `modules.txt`, in that order; the last ones become the validation set. They differ a little
between Python versions: losses can be compared between runs on one machine, and to about 0.05 between machines.
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
            print(f"{file} does not exist and is left out.", file=sys.stderr)


if __name__ == "__main__":
    main()
