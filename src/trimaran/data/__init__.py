"""data: tokenized datasets in Megatron's format: prepared, opened, split, shuffled, blended.

May import: spec.
Start reading: source.py (the samples of a Job), then indexed_dataset.py, samples.py (shuffling), blend.py;
prepare.py makes datasets from texts: inputs.py reads, tokenizer.py encodes, partial.py survives a kill.
tokenizers, zstandard and pyarrow are imported only where they are needed (`trimaran[data]`).
"""
