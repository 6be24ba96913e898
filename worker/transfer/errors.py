"""What can go wrong while state moves from one node to another.

    TransferError
    |-- TransferFailed      no source is left that could give the rest; says what each one did
    |-- TransferAborted     the caller's abort event was set; nothing is wrong with any source
    |-- ImageRefused        an image does not fit where it should go; names the tensor
    `-- PeerRefused         one peer said no, or proved to be somebody else; carries its reason

The first three reach the caller of `fetch`; `PeerRefused` is folded into the report of the source
it concerns, and is what a single connection raises.
"""


class TransferError(Exception):
    """Base of everything that `worker.transfer` raises on purpose."""


class TransferFailed(TransferError):
    """No usable source is left; the destination's contents are undefined."""


class TransferAborted(TransferError):
    """The caller asked to stop; the destination's contents are undefined."""


class ImageRefused(TransferError):
    """An image has other tensors, types or shapes than its destination."""


class PeerRefused(TransferError):
    """The other end refused this connection, or could not prove who it is."""
