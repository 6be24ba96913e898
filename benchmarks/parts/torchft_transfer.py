"""torchft's HTTP transport of a checkpoint, for `transfer_rate.py`; runs in torchft's environment.

Two processes: one serves eight tensors, one receives them once for each line on its input and
prints how long that took, with the processor time of both. It allocates what it receives, which is
how that transport works; ours writes into memory that exists.
"""

import argparse
import json
import multiprocessing
import sys
import time
from datetime import timedelta
from typing import Any

import torch

TIMEOUT = timedelta(seconds=60)


def state_of(nbytes: int) -> dict[str, torch.Tensor]:
    """Eight tensors of random bytes."""
    block = torch.randint(0, 256, (nbytes // 8,), dtype=torch.uint8)
    return {f"t{at}": block.clone() for at in range(8)}


def serve(nbytes: int, chunks: int, said: Any) -> None:
    """Serve the state until the pipe closes; answer with the processor time used so far."""
    from torchft.checkpointing.http_transport import HTTPTransport

    torch.manual_seed(0)
    torch.set_num_threads(1)
    transport: Any = HTTPTransport(TIMEOUT, chunks)
    transport.send_checkpoint([1], 1, state_of(nbytes), TIMEOUT)
    port = transport.address().rpartition(":")[2].partition("/")[0]
    said.send(f"http://127.0.0.1:{port}/checkpoint/")
    while said.recv():
        said.send(time.process_time())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--chunks", type=int, required=True)
    asked = parser.parse_args()
    from torchft.checkpointing.http_transport import HTTPTransport

    torch.manual_seed(0)
    torch.set_num_threads(1)
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=serve, args=(asked.bytes, asked.chunks, theirs), daemon=True)
    server.start()
    address = ours.recv()
    transport: Any = HTTPTransport(TIMEOUT, asked.chunks)
    expected = state_of(asked.bytes)
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        ours.send(True)
        sender_s, own_s = ours.recv(), time.process_time()
        began_s = time.perf_counter()
        got = transport.recv_checkpoint(0, address, 1, TIMEOUT)
        seconds = time.perf_counter() - began_s
        own_s = time.process_time() - own_s
        ours.send(True)
        told = {"seconds": seconds, "sender_cpu_s": ours.recv() - sender_s, "own_cpu_s": own_s}
        whole = all(torch.equal(got[name], expected[name]) for name in expected)
        del got
        print(json.dumps({**told, "whole": whole}), flush=True)
    ours.send(False)
    server.join(10)


if __name__ == "__main__":
    main()
