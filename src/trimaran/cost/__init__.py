"""cost: what does a layout cost? Parameters, FLOPs, bytes and seconds, by pure functions of one value or of columns.

May import: spec.
Start reading: predict.py (seconds, interval and memory of a Job), then time.py and memory.py; parameters.py and
flops.py (six formulas, each under its own name) stand by themselves.
"""
