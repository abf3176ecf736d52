"""The sections of benchmarks/faults.py: one file per kind of fault, each a generator of Attempts. Start reading at
`campaign.py`; what counts as survival is in the docstring of each section."""
