"""ledger: what was measured? One SQLite file, readers of logs and tables, the audit, the results.

May import: spec, processes, cost, export.
Start reading: store.py (the file), recognise.py (which reader reads what), audit/ (what is wrong in a measurement).
"""
