"""Examples are as slow as the machine is busy, and no test here is about time."""

from hypothesis import settings

settings.register_profile("sim", deadline=None)
settings.load_profile("sim")
