"""planner: which layouts, shapes and numbers of nodes are best? Every layout the rules allow, costed and ranked.

May import: spec, cost.
Start reading: question.py (what is asked), candidates.py (every layout), ranking.py (which is best and why).
"""
