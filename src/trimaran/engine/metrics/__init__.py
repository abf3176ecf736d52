"""What a run reports: metrics of each step, their sinks, loss spikes. Start at reporter.py."""
