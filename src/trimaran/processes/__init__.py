"""processes: how ranks are started, meet each other, show that they are alive, and end. Used by engine, probe and lab.

May import: spec.
Start reading: ranks.py (fork them, or join those of torchrun and SLURM); rendezvous.py says where they meet, failure.py
and exit_codes.py how a run ends, heartbeat.py (standard library only) what a watchdog reads.
"""
