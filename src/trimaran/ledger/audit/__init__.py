"""ledger.audit: what is wrong in a measurement, why, and what the value must have been.

May import: spec, cost, ledger.reading. It never looks at anybody's verdict, only at the numbers.
Start reading: audit.py (the order of the checks), then rates.py (TFLOPs x devices x seconds against the formulas).
"""

from trimaran.ledger.audit.audit import audit
from trimaran.ledger.audit.finding import Finding
from trimaran.ledger.audit.fix import corrected

__all__ = ["Finding", "audit", "corrected"]
