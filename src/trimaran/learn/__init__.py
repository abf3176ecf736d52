"""learn: how far do measurements move the constants? A robust fit with priors, judged on tables it did not see.

May import: spec, cost, ledger (never torch).
Start reading: fit.py, then validate.py (leaving each table out), rows.py (which trials can teach).
"""
