"""learn: how far do measurements move the constants? A robust fit with priors, judged on tables it did not see.

May import: spec, cost, ledger, probe.
Start reading: trials.py (the Job of a measured trial), fit.py, validate.py (leaving each table out), score.py.
"""
