"""processes: how ranks are started, meet each other, show that they are alive, and end. Used by engine, probe and lab.

May import: spec.
Start reading: ranks.py (fork them, or join those of torchrun and SLURM), then forked.py; rendezvous.py says where they
meet, signals.py what stops them, failure.py and exit_codes.py how a run ends, heartbeat.py what a watchdog reads and
hang.py what it concludes (both with the standard library only), slurm_step.py how a step of an allocation is started.
"""
