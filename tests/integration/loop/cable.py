"""A machine with a network of its own, on this one: a namespace, and a pair of ends between."""

import contextlib
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.integration.loop.core_fleet import Machine

_serial = itertools.count()


@contextlib.contextmanager
def cable(name: str) -> Iterator[tuple[Machine, Callable[[], None]]]:
    """A machine with a network of its own, and how to cut the cable to it."""
    number = os.getpid() % 250 + 1
    ours, theirs = f"10.213.{number}.1", f"10.213.{number}.2"
    pair = f"co{os.getpid()}.{next(_serial)}"  # the kernel takes its time to forget a name
    near, far = f"{pair}a", f"{pair}b"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespace can be made here: {error}")
    try:
        ip("link", "add", near, "type", "veth", "peer", "name", far)
        ip("link", "set", far, "netns", name)
        ip("addr", "add", f"{ours}/24", "dev", near)
        ip("link", "set", near, "up")
        ip("-n", name, "addr", "add", f"{theirs}/24", "dev", far)
        ip("-n", name, "link", "set", far, "up")
        ip("-n", name, "link", "set", "lo", "up")
        far_end = Machine(theirs, f"/run/netns/{name}")
        yield far_end, lambda: ip("link", "set", near, "down")
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("link", "del", near)
        ip("netns", "del", name)
