"""ledger.audit: what is wrong in a measurement, why, and what the value must have been.

May import: spec, cost, ledger.reading. It never reads anybody's verdict on a row, only the row's numbers.
Start reading: audit.py (the order of the checks, the corrected view), then rates.py (TFLOPs x devices x seconds
against the formulas).
"""

from trimaran.ledger.audit.audit import Corrected, corrected
from trimaran.ledger.audit.finding import Finding

__all__ = ["Corrected", "Finding", "corrected"]
