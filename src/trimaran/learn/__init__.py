"""learn: how far do measurements move the constants? A robust fit with priors, judged on tables it did not see.

May import: spec, cost, ledger, probe.
Start reading: fit.py, then validate.py (leaving each table out), trials.py (the Job of a trial; which can calibrate).
"""
