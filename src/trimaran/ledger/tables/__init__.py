"""ledger.tables: measurements that people wrote down, in Markdown notes and CSV files.

May import: spec, cost.identify, ledger.reading, ledger.logs (notes quote log lines).
Start reading: markdown.py (the walk through a document), then row.py (a row becomes a Trial); csv.py stands alone.
"""
