"""The local socket: whole messages whatever the reads are, many senders, and the end of a side."""

import asyncio
import os
import socket
import threading
import time

import pytest

from statemachine import messages as m
from statemachine.errors import EventCorrupt
from statemachine.ids import TransitionId
from worker.channel import (
    FD_VARIABLE,
    FRAME_BYTES_MAX,
    AgentChannel,
    ChannelClosed,
    FrameTooLarge,
    NotUnderAgent,
    WorkerChannel,
    frame,
    open_pair,
)


def stop(text: str) -> m.Stop:
    """A word of the agent that carries a text."""
    return m.Stop(reason=text)


def test_a_message_arrives_whole_from_single_bytes() -> None:
    """A message that trickles in byte by byte is received as one."""
    ours, theirs = socket.socketpair()
    end = WorkerChannel(theirs)
    raw = frame(m.encode_message(stop("slowly"))) + frame(m.encode_message(stop("again")))

    def trickle() -> None:
        for byte in raw:
            ours.sendall(bytes([byte]))

    sender = threading.Thread(target=trickle)
    sender.start()

    assert (end.receive(), end.receive()) == (stop("slowly"), stop("again"))

    sender.join()
    ours.close()
    end.close()


def test_several_messages_in_one_read_are_several() -> None:
    """Messages that arrive glued together are taken apart."""
    ours, theirs = socket.socketpair()
    end = WorkerChannel(theirs)
    ours.sendall(b"".join(frame(m.encode_message(stop(str(n)))) for n in range(50)))

    assert [end.receive() for _ in range(50)] == [stop(str(n)) for n in range(50)]

    ours.close()
    end.close()


def test_a_thread_that_waits_is_freed_when_the_agent_dies() -> None:
    """The end of the agent frees the receiving thread at once, and further sends raise."""
    ours, theirs = socket.socketpair()
    end = WorkerChannel(theirs)
    freed: list[float] = []

    def wait() -> None:
        with pytest.raises(ChannelClosed, match="agent is gone"):
            end.receive()
        freed.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    closed_at = time.monotonic()
    ours.close()
    waiting.join(timeout=5)

    assert freed
    assert freed[0] - closed_at < 0.5, f"freed after {freed[0] - closed_at:.3f} s"
    with pytest.raises(ChannelClosed):
        end.send(m.Finished(step=1))
    end.close()


def test_closing_its_own_end_frees_a_waiting_thread() -> None:
    """A training process that closes its channel does not leave its reader behind."""
    ours, theirs = socket.socketpair()
    end = WorkerChannel(theirs)
    outcome: list[Exception] = []

    def wait() -> None:
        try:
            end.receive()
        except ChannelClosed as closed:
            outcome.append(closed)

    waiting = threading.Thread(target=wait)
    waiting.start()
    end.close()
    waiting.join(timeout=5)

    assert len(outcome) == 1
    ours.close()


def test_half_a_message_is_an_end_not_a_message() -> None:
    """An agent that dies in the middle of a message is gone; the half is not decoded."""
    ours, theirs = socket.socketpair()
    end = WorkerChannel(theirs)
    ours.sendall(frame(m.encode_message(stop("cut")))[:-1])
    ours.close()

    with pytest.raises(ChannelClosed):
        end.receive()
    end.close()


def test_a_length_that_no_message_has_is_refused_before_memory_is_taken() -> None:
    """Bytes that are not ours are named as such instead of allocating gigabytes."""
    ours, theirs = socket.socketpair()
    end = WorkerChannel(theirs)
    ours.sendall(b"\xff\xff\xff\xff")

    with pytest.raises(FrameTooLarge):
        end.receive()
    with pytest.raises(FrameTooLarge):
        frame(bytes(FRAME_BYTES_MAX + 1))
    ours.close()
    end.close()


def test_a_message_of_the_wrong_side_is_refused() -> None:
    """A training process does not take its own kind of message for an agent's."""
    ours, theirs = socket.socketpair()
    end = WorkerChannel(theirs)
    ours.sendall(frame(m.encode_message(m.Finished(step=3))))

    with pytest.raises(EventCorrupt):
        end.receive()
    ours.close()
    end.close()


async def test_messages_of_many_threads_never_mix() -> None:
    """Threads that send at the same time each get their messages through, in their own order."""
    agent, sock = await open_pair()
    end = WorkerChannel(sock)
    threads, each = 8, 200

    def talk(number: int) -> None:
        for count in range(each):
            end.send(m.Refused(transition=TransitionId(count), reason=f"{number}" * 2000))

    senders = [threading.Thread(target=talk, args=(number,)) for number in range(threads)]
    for sender in senders:
        sender.start()
    counted = dict.fromkeys(range(threads), 0)
    for _ in range(threads * each):
        said = await agent.receive()
        assert isinstance(said, m.Refused)
        number = int(said.reason[0])
        assert said.transition == counted[number]
        counted[number] += 1
    for sender in senders:
        sender.join()

    assert counted == dict.fromkeys(range(threads), each)
    end.close()
    agent.close()


async def test_an_agent_never_waits_for_a_process_that_does_not_read() -> None:
    """What a training process does not read is kept for it, and it can still be heard."""
    agent, sock = await open_pair()
    end = WorkerChannel(sock)
    for number in range(200):
        agent.send(stop(f"{number:06d}" * 10_000))
    end.send(m.Finished(step=7))

    assert await agent.receive() == m.Finished(step=7)

    heard = [await asyncio.to_thread(end.receive) for _ in range(200)]
    assert [word.reason[:6] for word in heard if isinstance(word, m.Stop)] == [
        f"{number:06d}" for number in range(200)
    ]
    end.close()
    agent.close()


async def test_the_agent_hears_everything_said_before_the_end() -> None:
    """Last words are received before the end is; nothing said is lost with its speaker."""
    agent, sock = await open_pair()
    end = WorkerChannel(sock)
    end.send(m.Finished(step=1))
    end.send(m.Finished(step=2))
    end.close()

    assert [await agent.receive(), await agent.receive()] == [
        m.Finished(step=1),
        m.Finished(step=2),
    ]
    with pytest.raises(ChannelClosed):
        await agent.receive()
    agent.close()


async def test_saying_something_to_a_dead_process_is_harmless() -> None:
    """The agent may speak into a closed channel: the end is noticed elsewhere."""
    agent, sock = await open_pair()
    sock.close()
    with pytest.raises(ChannelClosed):
        await agent.receive()

    agent.send(stop("nobody hears this"))
    agent.close()
    agent.send(stop("nor this"))


def test_a_process_without_an_agent_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by hand, a training script is told how it wants to be started."""
    monkeypatch.delenv(FD_VARIABLE, raising=False)

    with pytest.raises(NotUnderAgent, match=r"worker\.agent"):
        WorkerChannel.from_environment()


@pytest.mark.parametrize("number", ["junk", "987654"])
def test_a_variable_that_names_no_socket_says_so(
    monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    """A stale variable is named, not turned into a bad descriptor error."""
    monkeypatch.setenv(FD_VARIABLE, number)

    with pytest.raises(NotUnderAgent, match=number):
        WorkerChannel.from_environment()


async def test_the_socket_is_taken_once_and_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data loader of the training process cannot take the channel for its own."""
    agent, sock = await open_pair()
    number = sock.detach()
    os.set_inheritable(number, True)
    monkeypatch.setenv(FD_VARIABLE, str(number))

    end = WorkerChannel.from_environment()

    assert FD_VARIABLE not in os.environ
    assert not os.get_inheritable(number)
    end.send(m.Finished(step=0))
    assert await agent.receive() == m.Finished(step=0)
    end.close()
    agent.close()


def test_agent_channel_is_what_open_pair_gives() -> None:
    """The agent's end is made together with the socket that a process inherits."""

    async def both() -> tuple[AgentChannel, socket.socket]:
        agent, sock = await open_pair()
        agent.close()
        sock.close()
        return agent, sock

    agent, sock = asyncio.run(both())
    assert isinstance(agent, AgentChannel)
    assert sock.family == socket.AF_UNIX
