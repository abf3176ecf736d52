"""probe: how fast is this hardware? Products, memory, attention, collectives, launches, by all ranks at once.

May import spec (and torch). Start at measure.py, the order of the measurements; measured.py is what comes out, and
learn/probed.py makes a Cluster of it.
"""
