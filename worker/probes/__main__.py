"""Run probes in this process: `python -m worker.probes --probe compute --budget-s 1 --json`.

Several are measured one after the other, with the budget each; starting once is worth it, since a
sweep waits for it. The last line of output is the measurements. Exit code 0 with them, 1 when they
could not be had (one line on stderr says why), 2 for wrong arguments. ``echo`` is the partner's
half of ``link`` and ``collective``: it serves one caller and ends.
"""

import argparse
import json
import math
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from worker.faults import SlowCompute
from worker.probes.pacing import Pace

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # read when numpy loads: one thread is what is compared

ALONE: Final = ("compute", "memory", "device")
WITH_PARTNER: Final = ("link", "collective")


def main() -> int:
    """Parse, measure, print."""
    parser = _parser()
    args = parser.parse_args()
    between = [probe for probe in args.probe if probe in WITH_PARTNER]
    if between and args.port is None:
        parser.error(f"--probe {between[0]} needs the partner's --host and --port")
    if "echo" in args.probe and len(args.probe) > 1:
        parser.error("--probe echo serves a partner, and measures nothing besides")
    if args.nice:
        os.nice(args.nice)
    pace = Pace(args.share)
    pace.begin()
    slow = SlowCompute.from_environment()
    try:
        if args.probe == ["echo"]:
            _echo(args.listen_fd, slow, _secret(args), pace)
            return 0
        found = _measured(args, slow, pace)
    except OSError as error:
        print(f"{', '.join(args.probe)} probe: {error}", file=sys.stderr)
        return 1
    finally:
        pace.end()
    if args.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:32} {value:12.3f}")
    return 0


def _measured(args: argparse.Namespace, slow: SlowCompute, pace: Pace) -> dict[str, float]:
    from worker.probes import collective, compute, link, memory, wire

    alone: dict[str, Callable[[float, SlowCompute], dict[str, float]]] = {
        "compute": partial(compute.measure, pace=pace),
        "memory": partial(memory.measure, pace=pace),
        "device": _device,
    }
    together = {
        "link": partial(link.measure, pace=pace),
        "collective": partial(collective.measure, pace=pace),
    }
    found: dict[str, float] = {}
    ends: wire.Ends | None = None
    for probe in args.probe:
        if probe in alone:
            found |= alone[probe](args.budget_s, slow)
        else:
            ends = ends or wire.connect(args.host, args.port, _secret(args))
            found |= together[probe](args.budget_s, slow, ends)
    return found


def _device(budget_s: float, slow: SlowCompute) -> dict[str, float]:
    """The probe of GPUs, which alone needs torch."""
    try:
        from worker.probes import device
    except ImportError as error:
        raise OSError(f"no torch: {error}") from error
    return device.measure(budget_s, slow)


def _secret(args: argparse.Namespace) -> bytes | None:
    path: Path | None = args.secret_file
    return path.read_bytes() if path is not None else None


def _echo(listen_fd: int | None, slow: SlowCompute, secret: bytes | None, pace: Pace) -> None:
    from worker.probes import wire

    if listen_fd is not None:
        with socket.socket(fileno=listen_fd) as listener:
            wire.echo(listener, slow, secret, pace)
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
        wire.echo(listener, slow, secret, pace)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m worker.probes", description=__doc__)
    choices = (*ALONE, *WITH_PARTNER, "echo")
    parser.add_argument("--probe", required=True, action="append", choices=choices)
    parser.add_argument("--budget-s", type=_budget, default=1.0, help="seconds of measuring")
    parser.add_argument(
        "--share",
        type=_share,
        default=1.0,
        help="of the time in which work is done, up to 1: 0.03 beside a run",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--nice", type=int, default=0, help="niceness to add")
    parser.add_argument("--host", default="127.0.0.1", help="the partner's address")
    parser.add_argument("--port", type=int, help="the partner's port")
    parser.add_argument(
        "--secret-file", type=Path, help="what both ends of a link probe must know; none: no proof"
    )
    parser.add_argument("--listen-fd", type=int, help="echo: an inherited listening socket")
    return parser


def _budget(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and 0 < value <= 600):
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 600 seconds")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0.001 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.001 and 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
