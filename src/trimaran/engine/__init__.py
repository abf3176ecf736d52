"""engine: train this Job, now, on these ranks. The only room, beside probe, that imports torch.

May import spec, and cost for FLOPs, predictions and the list of a model's tensors. Start at trainer.py, which builds
one rank's trainer in order. Folders: model, parallel, optimizer, kernels, checkpoint, loop, metrics, memory,
hugging_face.
"""
