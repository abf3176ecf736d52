"""logs: readers of Megatron-LM's, Megatron-DeepSpeed's and torchtitan's logs; each run in a log is a Trial.

Start reading: megatron.py (the largest format), then run.py (median, spread, warm-up) and failure.py (how it ended).
The argument dump and Megatron's flags are parsed by `export`.
"""

from trimaran.ledger.logs.megatron import is_megatron, read_megatron
from trimaran.ledger.logs.torchtitan import is_torchtitan, read_torchtitan

__all__ = ["is_megatron", "is_torchtitan", "read_megatron", "read_torchtitan"]
