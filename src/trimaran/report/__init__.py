"""report: what was measured and what was predicted, as one page that people look at, and its figures for slides.

May import: spec, cost, plan, ledger, learn, lab; plotly and jinja2 only inside, since planning installs without them.
Start reading: campaign.py (what a report is about), gather.py (where it comes from), figures/ (one file each), page.py.
"""
