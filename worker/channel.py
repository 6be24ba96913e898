"""The local socket between an agent and its training process: framing, and its two ends.

What belongs here: bytes of `statemachine.messages` on a socket pair that the training process
inherits, and nothing about when to say what. No torch: the agent imports this.

A frame is a length (4 bytes, big-endian) and one message. The training process's end is blocking
and may be written from any thread; the agent's end never waits for the training process: what the
process does not read is kept, and a process that reads nothing for long is ended by a deadline of
the agent, not by a full socket. End of file means that the other side is gone: there is no other
farewell, since a process that is killed cannot give one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from typing import Final, Protocol

from statemachine.messages import (
    FromWorker,
    ToWorker,
    decode_from_worker,
    decode_to_worker,
    encode_message,
)
from worker import tripwire

FD_VARIABLE: Final = "CHANGEOVER_AGENT_FD"
"""Environment variable that holds the number of the inherited socket."""

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Upper limit of one message: far above any real one, far below what would hurt."""

_LENGTH: Final = struct.Struct(">I")


class ChannelError(Exception):
    """Root of what can go wrong between an agent and its training process."""


class NotUnderAgent(ChannelError):
    """This process was not started by an agent; start it through one."""


class ChannelClosed(ChannelError):
    """The other side is gone, or this end was closed."""


class FrameTooLarge(ChannelError):
    """A length that no message has: the stream is not ours, or it is out of step."""


def frame(body: bytes) -> bytes:
    """Put the length before an encoded message.

    Raises:
        FrameTooLarge: over `FRAME_BYTES_MAX`.
    """
    if len(body) > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"a message of {len(body)} bytes; at most {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(body)) + body


def _length_of(head: bytes) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"a frame of {length} bytes; at most {FRAME_BYTES_MAX}")
    return int(length)


class Channel(Protocol):
    """The training process's end, as its step loop needs it."""

    def send(self, message: FromWorker) -> None:
        """Say something to the agent; from any thread."""

    def receive(self) -> ToWorker:
        """Wait for the next word of the agent."""

    def close(self) -> None:
        """End the conversation."""


class WorkerChannel:
    """The training process's end: blocking; many threads may send, one receives."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._sending = threading.Lock()
        self._closed = False

    @classmethod
    def from_environment(cls) -> WorkerChannel:
        """Take over the socket that the agent left for this process, once.

        The variable is removed, so that a child of the training process does not take it for its
        own, and the socket is not inherited further.

        Raises:
            NotUnderAgent: no agent started this process.
        """
        number = os.environ.pop(FD_VARIABLE, "")
        if not number:
            raise NotUnderAgent(
                "this process was not started by an agent: run it as "
                "`python -m worker.agent ... -- python SCRIPT`"
            )
        try:
            sock = socket.socket(fileno=int(number))
        except (ValueError, OSError) as error:
            raise NotUnderAgent(
                f"{FD_VARIABLE}={number} is no socket of an agent ({error}): "
                "was the variable inherited from another process?"
            ) from error
        sock.set_inheritable(False)
        tripwire.hold(os.environ)
        return cls(sock)

    def send(self, message: FromWorker) -> None:
        """Say something to the agent; whole, whichever thread says it.

        Raises:
            ChannelClosed: the agent is gone, or this end was closed.
        """
        raw = frame(encode_message(message))
        with self._sending:
            try:
                self._sock.sendall(raw)
            except OSError as error:
                raise ChannelClosed(f"the agent is gone: {error}") from error

    def receive(self) -> ToWorker:
        """Wait for the next word of the agent.

        Raises:
            ChannelClosed: the agent is gone, or this end was closed.
            EventCorrupt: the agent said what no agent of this version says.
        """
        length = _length_of(self._exactly(_LENGTH.size))
        return decode_to_worker(self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        got = bytearray(count)
        view = memoryview(got)
        filled = 0
        while filled < count:
            try:
                some = self._sock.recv_into(view[filled:])
            except OSError as error:
                raise ChannelClosed(f"the agent is gone: {error}") from error
            if not some:
                raise ChannelClosed("this end was closed" if self._closed else "the agent is gone")
            filled += some
        return bytes(got)

    def close(self) -> None:
        """End the conversation; a thread that waits in `receive` is freed by ChannelClosed."""
        self._closed = True
        with contextlib.suppress(OSError):  # the agent was faster
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


class AgentChannel:
    """The agent's end: asyncio. Made by `open_pair`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: ToWorker) -> None:
        """Say something to the training process; never waits, and is lost if it is gone."""
        if not self._writer.is_closing():
            self._writer.write(frame(encode_message(message)))

    async def receive(self) -> FromWorker:
        """Wait for the next word of the training process.

        Raises:
            ChannelClosed: it is gone.
            EventCorrupt: it said what no training process of this version says.
            FrameTooLarge: it wrote something else into the socket.
        """
        try:
            length = _length_of(await self._reader.readexactly(_LENGTH.size))
            raw = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ChannelClosed("the training process is gone") from error
        return decode_from_worker(raw)

    def close(self) -> None:
        """End the conversation; the training process sees end of file."""
        self._writer.close()


async def open_pair() -> tuple[AgentChannel, socket.socket]:
    """Make a channel: the agent's end, and the socket that the training process shall inherit.

    The caller closes its copy of that socket once the process was started.
    """
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    return AgentChannel(reader, writer), theirs
