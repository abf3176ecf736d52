"""The training loop: batches, steps, validation, checkpoints. Start at train.py."""
