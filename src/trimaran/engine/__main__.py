"""`torchrun … -m trimaran.engine JOB [options]`: the same as `trimaran train JOB [options]`."""

import sys

from trimaran.cli.main import run

if __name__ == "__main__":
    sys.argv = ["trimaran", "train", *sys.argv[1:]]
    run()
