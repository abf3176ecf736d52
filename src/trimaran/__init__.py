"""Trimaran: the fastest data x tensor x pipeline layout for a model on a cluster.

Rooms: spec (what is asked) -> cost (what it costs) -> ledger (what was measured) -> cli (the commands).
Start reading in `trimaran.spec`; `docs/architecture.md` has the map.
"""

__version__ = "0.1.0"
