"""What properties may ask for: where the checkout is, since some of them run it anew."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout that these tests are part of."""
    return Path(__file__).resolve().parents[2]
