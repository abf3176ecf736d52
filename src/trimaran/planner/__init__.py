"""planner: which layouts, shapes and numbers of nodes are best? Every layout the rules allow, costed and ranked.

May import: spec, cost.
Start reading: plan.py (Plan, the answer, and how it is composed), question.py, candidates.py, ranking.py.
"""
