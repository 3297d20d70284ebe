"""Property tests check truths, not speed: the machine may be shared, so examples have no deadline."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
