"""torchtitan: a Job as the files of torchtitan 0.2.2, and its TOML file as a Job.

Start reading: expressible.py (the Job that torchtitan can be told), then write.py and read.py, which share words.py
(its keys), shapes.py (its flavours) and stages.py (how it cuts layers). Later versions read Python instead of TOML.
"""

from trimaran.export.torchtitan.read import from_torchtitan
from trimaran.export.torchtitan.write import to_torchtitan

__all__ = ["from_torchtitan", "to_torchtitan"]
