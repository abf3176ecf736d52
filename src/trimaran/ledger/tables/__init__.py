"""ledger.tables: measurements that people wrote down, in Markdown notes and CSV files.

May import: spec, export (flag names), ledger.reading, ledger.logs (notes quote log lines).
Start reading: markdown.py (the walk through a document), then row.py (from a row to a Trial); csv.py uses row.py only.
"""
