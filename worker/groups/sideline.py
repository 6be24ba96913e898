"""A second thread for the sending half of large collectives.

What belongs here: running lanes beside the training thread, and joining them again. What does not:
which lanes (rings).

Why: sending is mostly the kernel copying bytes, receiving is copying and adding. In one thread a
rank is bound by the sum of both; with a core to spare, in two it is bound by the larger. Small
payloads stay in one thread, where handing over would cost more than it gains.
"""

import queue
import threading
from collections.abc import Callable

from worker.groups.exchange import OTHER_LANE, Exchange, Lane
from worker.groups.wakeup import WakeUp


class Errand:
    """Lanes at work on the second thread."""

    def __init__(self, lanes: list[Lane], caller: WakeUp) -> None:
        self.lanes = lanes
        self._caller = caller
        self._error: BaseException | None = None
        self._over = threading.Event()

    def finish(self, error: BaseException | None) -> None:
        """Say that the lanes are over; called on the second thread."""
        self._error = error
        self._over.set()
        self._caller.signal()

    def joined(self) -> Lane:
        """A lane that is done when the errand is; raises what the errand met."""
        while not self._over.is_set():
            yield OTHER_LANE
        if self._error is not None:
            raise self._error

    def settle(self) -> None:
        """Wait until the second thread touches nothing any more; the group must be broken."""
        self._over.wait()


class Sideline:
    """The second thread of one group; started when first needed."""

    def __init__(self, is_broken: Callable[[], bool], timeout_s: float) -> None:
        self.wake = WakeUp()
        self._exchange = Exchange(self.wake, is_broken, timeout_s)
        self._errands: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, lanes: list[Lane], caller: WakeUp) -> Errand:
        """Run `lanes`; `caller` is signalled when they are over."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="group-sideline", daemon=True)
            self._thread.start()
        errand = Errand(lanes, caller)
        self._errands.put(errand)
        return errand

    def stop(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._errands.put(None)

    def _work(self) -> None:
        while (errand := self._errands.get()) is not None:
            error: BaseException | None = None
            try:
                self._exchange.run(errand.lanes)
            except BaseException as met:  # noqa: BLE001 - raised again where it is joined
                error = met
            errand.lanes = []
            errand.finish(error)
