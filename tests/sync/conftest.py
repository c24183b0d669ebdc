"""Examples are as slow as the machine is busy, and no test here is about time."""

from hypothesis import settings

settings.register_profile("sync", deadline=None)
settings.load_profile("sync")
