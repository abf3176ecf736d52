"""lab: run many trials, on this machine or through SLURM, and record how each ended. The engine runs as a process.

May import: spec, processes, cost, planner, ledger.
Start reading: harness.py (the loop), supervise.py (the process that watches one trial) and outcome.py (what its end
means).
"""
