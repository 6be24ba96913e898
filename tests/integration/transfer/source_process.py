"""A source of state in a process of its own: offers one image and serves until its stdin ends.

Started by the tests beside it with one JSON argument; prints one JSON line when it listens.
"""

import json
import random
import sys

from worker.transfer import Party, StateImage, TensorSpec, TensorView, TransferServer


def image_of(seed: int, nbytes: int) -> StateImage:
    """An image of random bytes: many small tensors, an empty one, and one large."""
    source = random.Random(seed)
    sizes = [source.randrange(1, 3000) for _ in range(200)]
    sizes += [0, max(0, nbytes - sum(sizes))]
    return StateImage(
        tuple(
            TensorView(
                TensorSpec(f"t{at}", "U8", (size,)), memoryview(bytearray(source.randbytes(size)))
            )
            for at, size in enumerate(sizes)
        ),
        {"stamp": {"step": 41, "seed": seed}},
    )


def main() -> None:
    """Offer to each joiner named, print where, wait for the end of stdin."""
    told = json.loads(sys.argv[1])
    image = image_of(told["seed"], told["nbytes"])
    server = TransferServer(
        secret=bytes.fromhex(told["secret"]), job=told["job"], me=Party(*told["me"])
    )
    for joiner in told["joiners"]:
        server.offer(told["transition"], Party(*joiner), image)
    print(json.dumps({"port": server.address[1], "digest": image.digest()}), flush=True)
    sys.stdin.read()
    server.close()


if __name__ == "__main__":
    main()
