"""cost: what does a layout cost? Parameters and FLOPs here; bytes and seconds come beside them. Pure functions.

May import: spec (never torch). Every function works on one value and on numpy columns alike.
Start reading: parameters.py, then flops.py (six formulas, each under its own name).
"""
