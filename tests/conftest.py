"""For all tests: no limit on how long an example may take, since nothing here is timed and machines are shared.

With CI=1 hypothesis always draws the same examples, so that a change is judged by itself; without, new ones each time.
"""

from hypothesis import settings

settings.register_profile("untimed", parent=settings(), deadline=None)
settings.load_profile("untimed")
