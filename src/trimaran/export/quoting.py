"""Text of a Job in a shell script: one function for each kind of place, so that no text leaves its own."""

import re
import shlex

from trimaran.spec import Mistake

LONGEST_NAME = 100  # SLURM's output file is named after the job, and a file's name has at most 255 bytes


def shell_word(text: str) -> str:
    """One word of a command, an assignment or an array, whatever is in it."""
    if "\0" in text:
        raise Mistake(
            f"{text[:LONGEST_NAME]!r} has a NUL character, which no argument or variable can hold; remove it."
        )
    return shlex.quote(text)


def one_line(text: str) -> str:
    """For a comment or a message: line breaks, control characters and marks that reorder text become spaces."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return re.sub(" +", " ", printable).strip()


def plain_name(name: str) -> str:
    """For an #SBATCH line or a folder: without characters that are special to a shell or to SLURM."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:LONGEST_NAME].strip("-.") or "job"
