"""Settings for the whole test run."""

from hypothesis import settings

# Machines that run the tests are often shared: how long one example takes must not fail a test.
settings.register_profile("cdnasim", deadline=None)
settings.load_profile("cdnasim")
