"""cli: the commands, one thin file each: options in, tables and JSON out. The work is done in the other rooms.

May import: everything.
Start reading: main.py, which imports only the file of the command that is called. torch and plotly are imported inside
the functions that need them, since planning installs without them.
"""
