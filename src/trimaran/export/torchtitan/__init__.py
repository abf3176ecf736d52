"""torchtitan: launch files of torchtitan 0.2.2 from a Job, and a Job from its TOML file.

Start reading: adapt.py (the Job that torchtitan can run), then write.py and read.py, which share keys.py (its
configuration keys), shapes.py (model flavours) and stages.py (pipeline splits). Later versions use Python, not TOML.
"""
