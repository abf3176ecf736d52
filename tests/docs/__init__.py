"""Every command shown in README.md and docs/ is run. Start reading at `blocks.py`; CONTRIBUTING.md lists the marks."""
