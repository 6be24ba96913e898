"""What the scripts may ask for: a fresh stage, and to be written anew."""

from __future__ import annotations

import pytest

from tests.datadriven.stage import Stage


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest tests/datadriven --rewrite` writes what the core answers into the scripts."""
    parser.addoption("--rewrite", action="store_true", help="write today's answers into scripts")


@pytest.fixture
def stage() -> Stage:
    """A fresh stage."""
    return Stage()
