"""ledger: what was measured? One SQLite file, readers of logs and tables, the audit, the results.

May import: spec, cost, export, processes.
Start reading: store.py (the file), recognise.py (which reader reads what), audit/ (what is wrong in a measurement, and
the corrected view of trials that results, report, score and learn read).
"""
