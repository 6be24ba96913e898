"""Record real step times, for the fleets on which the detector's error rates are measured.

Each rank is a process that trains the example model and then waits for the others, as ranks of a
run do; what it takes without that wait is its own work, which is what the detector compares. Wall
and processor time of each step are kept in microseconds, so that whatever the machine does to a
step is in the record: neighbours, scheduling, clocks, caches. Step n of one rank happened beside
step n of the others. With more ranks than cores they contend, as those of a demo do.

Writes one line of JSON per rank, gzipped; with an existing file, lines are added to it.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
WARMUP_STEPS = 20


def one_rank(rank: int, ranks: int, meet: str, seconds: float, arguments: list[str]) -> None:
    """Train for `seconds`; print the steps as one line."""
    sys.path.insert(0, str(EXAMPLES))
    import recipe
    import torch
    import torch.distributed as dist
    from model import loss_of

    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks)

    parsed = recipe.arguments("a rank").parse_args(arguments)
    parts = recipe.recipe(parsed, seed=os.getpid())
    work_us: list[int] = []
    cpu_us: list[int] = []
    ends_at = time.perf_counter() + seconds
    going = torch.ones(1)
    while going.item():
        began_s = time.perf_counter()
        began_cpu_s = time.process_time()
        inputs, targets = parts.corpus.batch(len(work_us), 0, 1)
        loss_of(parts.model(inputs), targets).backward()
        parts.optimizer.step()
        parts.optimizer.zero_grad()
        work_us.append(round((time.perf_counter() - began_s) * 1e6))
        cpu_us.append(round((time.process_time() - began_cpu_s) * 1e6))
        going.fill_(time.perf_counter() < ends_at)
        dist.all_reduce(going, dist.ReduceOp.MIN)
    dist.destroy_process_group()
    found = {"work_us": work_us[WARMUP_STEPS:], "cpu_us": cpu_us[WARMUP_STEPS:]}
    print(json.dumps(found, separators=(",", ":")))


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        rank, ranks, meet, seconds, *rest = sys.argv[2:]
        one_rank(int(rank), int(ranks), meet, float(seconds), rest)
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the file to write, or to add to (.jsonl.gz)")
    parser.add_argument("--name", required=True, help="of this recording, such as quiet")
    parser.add_argument("--ranks", type=int, default=2, help="processes at once")
    parser.add_argument("--seconds", type=float, default=60.0)
    asked, rest = parser.parse_known_args()
    command = [sys.executable, __file__, "--rank"]
    with tempfile.TemporaryDirectory() as folder:
        meet = str(Path(folder) / "meet")
        children = [
            subprocess.Popen(
                [*command, str(number), str(asked.ranks), meet, str(asked.seconds), *rest],
                stdout=subprocess.PIPE,
            )
            for number in range(asked.ranks)
        ]
        lines = [json.loads(child.communicate()[0]) for child in children]
    cores = os.cpu_count()
    with gzip.open(asked.out, "at", encoding="ascii") as out:
        for number, line in enumerate(lines):
            head = {"name": asked.name, "rank": number, "ranks": asked.ranks, "cores": cores}
            out.write(json.dumps(head | line, separators=(",", ":")) + "\n")
    steps = [len(line["work_us"]) for line in lines]
    print(f"{asked.name}: {asked.ranks} ranks on {cores} cores, {sum(steps)} steps; {asked.out}")


if __name__ == "__main__":
    main()
