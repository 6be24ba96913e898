"""A training process without training: it follows the script that its arguments name.

Run by an agent. Every word heard is printed as one line, so that a test can read it in the log.

  --never-ready         hear everything, never reach the step loop
  --deaf                hear unplanned preparations and never answer them
  --park-only           answer them with Parked, then nothing
  --crash-at-start      end with code 7 before anything
  --child               start a child that sleeps, in a session of its own
  --linger              do not end when told to stop
  --at-step             leave word of having committed step 41
"""

import os
import subprocess
import sys

from statemachine import messages as m
from statemachine.events import Motive, Report
from statemachine.ids import Epoch, Role, Slot
from statemachine.vitals import Vitals, summarise
from worker.channel import ChannelClosed, WorkerChannel
from worker.tripwire import note


def say(*words: object) -> None:
    """Print one line for the test."""
    print(*words, flush=True)


def vitals_of(hello: m.Hello, window: int) -> Vitals:
    """A window with one metric."""
    return Vitals(
        node=hello.node,
        incarnation=hello.incarnation,
        job=hello.declared.job,
        slot=Slot(0),
        role=Role("only"),
        epoch=Epoch(0),
        window=window,
        started_at_ms=window,
        ended_at_ms=window + 1,
        metrics={"work_ms": summarise([1.0, 2.0])},
    )


def answer_prepare(channel: WorkerChannel, word: m.Prepare, options: set[str]) -> None:
    """Prepare nothing and say that it is done."""
    unplanned = word.motive is Motive.UNPLANNED
    if unplanned and "--deaf" in options:
        return
    if unplanned:
        channel.send(m.Parked(transition=word.transition))
        if "--park-only" in options:
            return
    report = Report(has_state=True, applied=4) if unplanned else None
    channel.send(m.Prepared(transition=word.transition, links_opened=2, took_ms=1.5, report=report))


def answer(channel: WorkerChannel, word: m.ToWorker, options: set[str]) -> bool:
    """React to a word; False when it was the last."""
    match word:
        case m.Prepare():
            answer_prepare(channel, word, options)
        case m.Commit():
            channel.send(m.Applied(transition=word.transition, epoch=word.epoch, step=5))
        case m.Rehearse():
            channel.send(m.Rehearsed(job=word.job, role=word.role, digest="d", took_ms=3.0))
        case m.Stop():
            channel.send(m.Finished(step=9, weights_digest="w"))
            return "--linger" in options
        case _:
            pass
    return True


def main() -> None:
    """Serve until told to stop or until the agent is gone."""
    options = set(sys.argv[1:])
    if "--crash-at-start" in options:
        say("crashing")
        sys.exit(7)
    if "--child" in options:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        say("child", child.pid)
    channel = WorkerChannel.from_environment()
    hello = channel.receive()
    assert isinstance(hello, m.Hello)
    say("patience", hello.patience.hang_deadline_s)
    say("Hello", hello.node, hello.incarnation, hello.declared.job, hello.secret_path)
    if "--never-ready" not in options:
        channel.send(
            m.Ready(
                pid=os.getpid(),
                host="127.0.0.1",
                port=1,
                transfer_port=2,
                digest="d",
                state_bytes=3,
            )
        )
        channel.send(m.Window(vitals=vitals_of(hello, 0)))
    if "--at-step" in options:
        note(41)
        say("at step", 41)
    try:
        while True:
            word = channel.receive()
            say("heard", type(word).__name__, getattr(word, "transition", ""))
            if not answer(channel, word, options):
                return
    except ChannelClosed:
        say("the agent is gone")


if __name__ == "__main__":
    main()
