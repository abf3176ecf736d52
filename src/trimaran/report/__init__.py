"""report: measurements, predictions and the plan as one HTML page, and its figures for slides.

May import: spec, export, cost, planner, ledger, learn, lab.
Start reading: campaign.py (what a report is about), gather.py (where its campaigns come from), answer.py (sentences),
figures/, page.py. plotly and jinja2 are imported only here, since planning installs without them.
"""
