"""plan: which layouts, shapes and numbers of nodes are best? Every layout the rules allow, costed, ranked, explained.

May import: spec and cost (never torch).
Start reading: question.py (what is asked), candidates.py (every layout), ranking.py (which is best and why).
"""
