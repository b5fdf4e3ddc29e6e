"""Settings for the whole test run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Machines that run the tests are often shared: how long one example takes must not fail a test.
settings.register_profile("cdnasim", deadline=None)
settings.load_profile("cdnasim")


@pytest.fixture(scope="session", autouse=True)
def own_profile_cache() -> Iterator[None]:
    """Profiles of compute units are kept for the run, not in the user's folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CDNASIM_CACHE"] = folder
        yield
        del os.environ["CDNASIM_CACHE"]
