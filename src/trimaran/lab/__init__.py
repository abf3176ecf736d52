"""Room `lab`: run many trials, on this machine or through SLURM, so that nothing that happens is an accident.

May import spec, cost, plan and ledger; never torch, never the engine: that is started as a process.
Start with `harness.py` (the loop), `supervise.py` (the process that watches one trial) and `outcome.py` (what its end
means).
"""
