"""probe: how fast is this hardware? GEMMs, memory, attention, collectives, kernel launches, by all ranks at once; and
what this machine is (detect.py, without torch).

May import: spec, processes.
Start reading: measure.py, the order of the measurements; result.py is what comes out, and learn/probed.py makes a
Cluster of it.
"""
