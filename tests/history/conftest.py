"""How the fold of a new recorded log is written down."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest tests/history --record` writes what the fold of a new log says."""
    parser.addoption("--record", action="store_true", help="write what is missing beside new logs")
