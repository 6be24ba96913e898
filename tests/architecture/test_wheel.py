"""What is installed is whole: a wheel carries every file of the packages that is no Python."""

from pathlib import Path

import pytest
from setuptools import Distribution
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("statemachine", "controlplane", "worker", "simulator")
NOT_SHIPPED = {".py", ".pyc"}


def test_a_wheel_carries_every_data_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates, pages and recorded data: setuptools itself is asked what it would ship, since an
    editable installation finds in the checkout whatever a wheel would lack.
    """
    monkeypatch.chdir(ROOT)
    distribution = Distribution()
    distribution.parse_config_files()
    command = build_py(distribution)
    command.finalize_options()
    found = command.get_data_files_without_manifest()  # the manifest would be written here
    shipped = {Path(source) / name for _, source, _, names in found for name in names}
    present = {
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in NOT_SHIPPED
    }

    assert Path("controlplane/web/static/index.html") in present
    assert present == shipped, f"not in a wheel: {sorted(map(str, present - shipped))}"
