"""What a run reports: metrics of each step, their sinks, loss spikes, and what is left when a loss is not finite.
Start at reporter.py.
"""
