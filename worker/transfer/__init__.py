"""State from one node to another: who may have it, what travels, and what went wrong.

What belongs here: moving bytes between processes that prove themselves to each other. What the
bytes mean is `worker.state`'s business; nothing here needs torch, and nothing is ever unpickled.

Reading order: image (what travels), token (who may have it), seal (how a chunk is recognised),
wire (the conversation), offer and server (giving), pool, draw and fetch (taking).
"""

from worker.transfer.draw import Limits, Source, SourceReport
from worker.transfer.errors import (
    ImageRefused,
    PeerRefused,
    TransferAborted,
    TransferError,
    TransferFailed,
)
from worker.transfer.fetch import Claim, Fetching, TransferReport, fetch
from worker.transfer.image import ImageHeader, StateImage, TensorSpec, TensorView
from worker.transfer.offer import Offer
from worker.transfer.server import TransferServer
from worker.transfer.token import LENT, Binding, Party

__all__ = [
    "LENT",
    "Binding",
    "Claim",
    "Fetching",
    "ImageHeader",
    "ImageRefused",
    "Limits",
    "Offer",
    "Party",
    "PeerRefused",
    "Source",
    "SourceReport",
    "StateImage",
    "TensorSpec",
    "TensorView",
    "TransferAborted",
    "TransferError",
    "TransferFailed",
    "TransferReport",
    "TransferServer",
    "fetch",
]
