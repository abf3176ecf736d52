"""cost: what does a layout cost? Parameters, FLOPs, bytes and seconds; pure functions of numbers or numpy columns.

May import: spec.
Start reading: predict.py (`predict_job`: one Job in, one prediction out), then time.py and memory.py. columns.py is the
one way from Jobs to columns, setups.py the one from a measured row to a Job.
"""
