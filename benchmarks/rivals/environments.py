"""Environments of the rivals: one virtual environment each, made once, with pinned versions.

They are kept outside the checkout, since nothing of ours needs them.
"""

import subprocess
import sys
from pathlib import Path

PINNED = {
    "torchft": ["torch==2.13.0", "numpy", "torchft-nightly==2026.10.26"],
    "nvrx": ["torch==2.13.0", "numpy", "nvidia-resiliency-ext==0.4.1"],
}
"""NVRx's newer wheels ask for glibc 2.39; torchft's last release loses survivors on gloo."""


def interpreter(folder: Path, rival: str) -> str:
    """The interpreter of a rival's environment, which is made if it is missing."""
    home = folder / rival
    python = home / "bin" / "python"
    done = home / "complete"
    if not done.exists():
        print(f"making {home} ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PINNED[rival]], check=True)
        done.touch()
    return str(python)
