"""Checkpoints of whole tensors that any layout reads. Start at checkpointer.py."""
