"""export: launch files of other trainers written from a Job, and a Job read from launch files (without torch).

May import: spec.
Start reading: formats.py (every trainer, both directions), then adapt.py and partial_job.py (what either direction
gives). megatron_flags.py is the one table of Megatron's flags; the ledger's log readers use it too.
"""
