"""cli: the commands, one thin file each: options in, tables and JSON out. The work is done in the other rooms.

May import: everything.
Start reading: main.py. Heavy imports stay inside the functions, so that `trimaran --help` is instant.
"""
