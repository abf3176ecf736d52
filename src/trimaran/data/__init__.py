"""data: what is trained on? Token files as Megatron writes them: prepared, opened, split, shuffled, blended.

May import: spec (never torch); tokenizers, zstandard and pyarrow only where they are needed (`trimaran[data]`).
Start reading: source.py (what a Job trains on), then tokens.py (a data set), samples.py (its order), blend.py;
prepare.py makes data sets of texts: inputs.py reads, tokenizer.py encodes, writing.py survives a kill.
"""
