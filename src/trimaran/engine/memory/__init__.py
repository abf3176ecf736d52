"""The memory of one rank, measured on fake tensors. Start at rank_memory.py."""
