"""engine: train this Job, now, on these ranks, with PyTorch.

May import: spec, processes, cost, data, export.
Start reading: trainer.py, which builds one rank's trainer in order, then loop/train.py.
Folders: model, parallel, optimizer, kernels, checkpoint, loop, metrics, memory, hugging_face.
"""
