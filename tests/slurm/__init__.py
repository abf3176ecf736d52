"""A real SLURM on this machine, for tests and for development. Start reading at `cluster.py`."""
