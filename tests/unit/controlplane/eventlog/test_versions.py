"""Which servers are good enough, and for what."""

import pytest

from controlplane.eventlog.errors import UnsupportedServer
from controlplane.eventlog.versions import judge_version, parse_version


@pytest.mark.parametrize("text", ["3.5.13", "3.5.16", "3.6.0", "4.0.0", "etcd Version: 3.5.30\n"])
def test_a_good_version_needs_no_word(text: str) -> None:
    """From 3.5.13 on there is no warning."""
    assert judge_version(text) == ""


@pytest.mark.parametrize("text", ["3.4.23", "3.5.3", "3.5.12"])
def test_an_old_version_is_warned_of(text: str) -> None:
    """Versions with known faults run, with a warning that names them."""
    assert text in judge_version(text)


@pytest.mark.parametrize("text", ["3.5.0", "3.5.1", "3.5.2"])
def test_a_version_that_loses_data_is_for_demos(text: str) -> None:
    """Versions that may lose data are refused for anything but a demo."""
    with pytest.raises(UnsupportedServer, match="may lose data"):
        judge_version(text)

    assert "demo" in judge_version(text, demo=True)


@pytest.mark.parametrize("text", ["3.3.27", "2.3.8", "memory", ""])
def test_too_old_or_no_version_is_refused(text: str) -> None:
    """What is older than 3.4, or no version at all, is refused even for a demo."""
    with pytest.raises(UnsupportedServer):
        judge_version(text, demo=True)


def test_versions_compare_as_numbers() -> None:
    """3.5.9 is older than 3.5.13."""
    assert parse_version("3.5.9") < parse_version("3.5.13")
