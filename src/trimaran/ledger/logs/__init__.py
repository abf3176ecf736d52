"""logs: what did a trainer print? Megatron-LM, Megatron-DeepSpeed and torchtitan logs, each run in them a Trial.

May import: spec, ledger.reading (never torch).
Start reading: megatron.py (the largest format), then run.py (median, spread, warm-up) and failure.py (why it ended).
"""

from trimaran.ledger.logs.megatron import is_megatron, read_megatron
from trimaran.ledger.logs.torchtitan import is_torchtitan, read_torchtitan

__all__ = ["is_megatron", "is_torchtitan", "read_megatron", "read_torchtitan"]
