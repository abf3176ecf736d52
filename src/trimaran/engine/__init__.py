"""engine: train this Job, now, on these ranks. The only room, beside probe, that imports torch.

May import spec, and cost for FLOPs, predictions and the list of a model's tensors. Start at trainer.py, which puts the
parts together in order: world (processes), model (collectives, masks, loss), weights (ZeRO), pipeline, gradients.
"""
