"""cli: the commands, one thin file per verb. What they do is in the other rooms; here is only how they look.

May import: everything. Heavy imports stay inside the functions, so that `trimaran --help` is instant.
Start reading: main.py.
"""
