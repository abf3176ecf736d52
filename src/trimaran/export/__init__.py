"""export: a Job in the words of other trainers, and back. Launch files to run, a Job of launch files that ran.

May import: spec (never torch).
Start reading: targets.py (what can be written) and recognise.py (what can be read); exported.py and found.py say what
either gives. megatron_flags.py is the one table behind both ways.
"""
