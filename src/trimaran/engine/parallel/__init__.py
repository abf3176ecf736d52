"""Data, tensor and pipeline parallelism: the ranks of a run (world.py), tensor and sequence parallel layers, ZeRO,
pipeline schedules. Start at world.py.
"""
