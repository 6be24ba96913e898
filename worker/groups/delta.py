"""Collectives over links: the reference backend for CPU tensors.

What belongs here: each collective of the port, put together from trees (small) and rings (large).
What does not: how links live (linked), poll (exchange), bytes of tensors (arrays).

All ranks get the same bits, and the same bits whoever fills a slot, since the order of reduction is
a function of the index alone. Small payloads take the tree, whose cost is its depth; large ones the
ring, whose cost is the bytes. `gather`, `scatter` and `reduce` are built from these too and move
more bytes than they must: they are here for completeness, not on any hot path.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from worker.groups.arrays import Arithmetic, Array, Copyable, Cuts, Reducible, check_reducible
from worker.groups.backend import Capabilities
from worker.groups.bulk import BulkStream
from worker.groups.direct import DirectGroup
from worker.groups.frames import CHUNK_BYTES_MAX, chunks_of
from worker.groups.port import ReduceOp
from worker.groups.rings import Pass, Relay
from worker.groups.view import View

TREE_BYTES_MAX: Final = 256 * 1024
TWO_THREADS_BYTES_MIN: Final = 8 * 1024 * 1024
EXCHANGE_TAG: Final = 0x7FFFFFFF


class DeltaBackend(DirectGroup):
    """The port's collectives over links."""

    capabilities = Capabilities(
        name="delta",
        abort_is_immediate=True,
        prepares_in_background=True,
        links_survive_switch=True,
        direct_messages=True,
        notices_reset_while_idle=True,
    )

    _scratch: Array | None = None

    # --- votes and barriers -----------------------------------------------------------------------

    def vote(self, values: Sequence[int]) -> list[int] | None:
        """Element-wise minimum of a few 64-bit integers over all members.

        None: the group is broken, or broke before this rank held the outcome. A rank that holds it
        returns it even if the group breaks while it passes it on.
        """
        with self._turn:
            if self._broken is not None or self._view is None or self._tree is None:
                return None
            layout = struct.Struct(f"<{len(values)}q")
            payload = bytearray(layout.pack(*values))
            scratch = bytearray(layout.size)
            settled = False

            def fold() -> None:
                lowest = map(min, layout.unpack(payload), layout.unpack(scratch))
                layout.pack_into(payload, 0, *lowest)

            def settle() -> None:
                nonlocal settled
                settled = True

            stamp = self._stamp()
            whole, part = memoryview(payload), memoryview(scratch)
            self._run([self._tree.up_and_down(stamp, whole, part, fold, settle)])
            return list(layout.unpack(payload)) if settled else None

    def barrier(self) -> bool:
        """Return when all members have called it; False when the group is broken."""
        return self.vote([0]) is not None

    # --- reductions -------------------------------------------------------------------------------

    def all_reduce(self, tensor: Tensor, op: ReduceOp) -> bool:
        """Reduce in place over all members."""
        check_reducible(tensor, op)

        def go(view: View) -> bool:
            data = Reducible(tensor)
            done = self._reduce_array(view, data, Arithmetic(op, view.plan.size))
            if done:
                data.store()
            return done

        return self._collective(go)

    def _reduce_array(self, view: View, data: Reducible, arithmetic: Arithmetic) -> bool:
        if view.plan.size == 1 or not data.array.size:
            return True
        if data.array.nbytes <= TREE_BYTES_MAX:
            return self._tree_reduce(data, arithmetic)
        return self._ring_reduce(view, data.array, arithmetic)

    def _tree_reduce(self, data: Reducible, arithmetic: Arithmetic) -> bool:
        assert self._tree is not None
        array, payload = data.array, data.payload
        scratch = self._scratch_for(array)[: array.size]
        root = self._tree.me == 0

        def settled() -> None:
            if root:
                arithmetic.finish(array)

        lane = self._tree.up_and_down(
            self._stamp(),
            payload,
            scratch.data.cast("B"),
            lambda: arithmetic.fold(array, scratch),
            settled,
        )
        return self._run([lane])

    def _ring_reduce(self, view: View, array: Array, arithmetic: Arithmetic) -> bool:
        """Reduce-scatter, then all-gather, as one trip of 2 (n - 1) steps."""
        size = view.plan.size
        cuts = Cuts(array, size)
        scratch = self._scratch_for(array)
        raw = scratch.data.cast("B")

        def landing(step: int, segment: int, chunk: int) -> memoryview:
            if step < size - 1:
                return raw[: cuts.nbytes(segment, chunk)]
            return cuts.payload(segment, chunk)

        def landed(step: int, segment: int, chunk: int, elsewhere: memoryview | None) -> None:
            if step < size - 1:
                part = cuts.part(segment, chunk)
                arithmetic.fold(part, cuts.as_array(elsewhere, scratch[: part.size]))
                if step == size - 2:
                    arithmetic.finish(part)
            elif elsewhere is not None:
                cuts.payload(segment, chunk)[:] = elsewhere

        steps = 2 * (size - 1)
        return self._go_round(
            view,
            Pass(size, view.plan.me, steps, cuts.chunks, cuts.payload, landing, landed),
            array.nbytes,
        )

    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp) -> bool:
        """Reduce `inputs[i]` of all members into the output of member i."""
        check_reducible(output, op)

        def go(view: View) -> bool:
            size, me = view.plan.size, view.plan.me
            work = torch.stack([one.detach().reshape(-1) for one in inputs])
            data = Reducible(work)
            done = self._ring_scatter(view, data.array, Arithmetic(op, size))
            if done:
                data.store()
                output.detach().copy_(work[me].view_as(output))
            return done

        return self._collective(go)

    def _ring_scatter(self, view: View, array: Array, arithmetic: Arithmetic) -> bool:
        """One trip of n - 1 steps, started so that segment i ends at member i."""
        size = view.plan.size
        if size == 1 or not array.size:
            return True
        cuts = Cuts(array, size)
        scratch = self._scratch_for(array)
        raw = scratch.data.cast("B")

        def landing(_step: int, segment: int, chunk: int) -> memoryview:
            return raw[: cuts.nbytes(segment, chunk)]

        def landed(step: int, segment: int, chunk: int, elsewhere: memoryview | None) -> None:
            part = cuts.part(segment, chunk)
            arithmetic.fold(part, cuts.as_array(elsewhere, scratch[: part.size]))
            if step == size - 2:
                arithmetic.finish(part)

        start = view.plan.me - 1
        return self._go_round(
            view,
            Pass(size, start, size - 1, cuts.chunks, cuts.payload, landing, landed),
            array.nbytes,
        )

    def reduce(self, tensor: Tensor, root: int, op: ReduceOp) -> bool:
        """Reduce into the root's tensor; the others keep theirs."""
        work = tensor.detach().clone()
        done = self.all_reduce(work, op)
        view = self._view
        if done and view is not None and view.plan.me == root:
            tensor.detach().copy_(work)
        return done

    # --- copies -----------------------------------------------------------------------------------

    def broadcast(self, tensor: Tensor, root: int) -> bool:
        """Copy the root's tensor to all members."""

        def go(view: View) -> bool:
            if not 0 <= root < view.plan.size:
                raise ValueError(f"{self.name}: no member {root} among {view.plan.size}")
            data = Copyable(tensor)
            done = self._spread(view, data.payload, root)
            if done and view.plan.me != root:
                data.store()
            return done

        return self._collective(go)

    def _spread(self, view: View, payload: memoryview, root: int) -> bool:
        assert self._tree is not None
        size = view.plan.size
        if size == 1 or not payload.nbytes:
            return True
        if payload.nbytes <= TREE_BYTES_MAX:
            return self._run([self._tree.flood(self._stamp(), payload, root)])
        relay = Relay((view.plan.me - root) % size, size, chunks_of(payload))
        previous, following = self._ring(view)
        lanes = relay.lanes(self._stamp(), previous, following)
        if len(lanes) < 2 or payload.nbytes < TWO_THREADS_BYTES_MIN or following.shares:
            return self._run(lanes)
        return self._run_in_two(relay.progress, lanes)

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> bool:
        """Give every member each member's tensor."""

        def go(view: View) -> bool:
            targets = [Copyable(one) for one in outputs]
            targets[view.plan.me].payload[:] = Copyable(tensor).payload
            done = self._ring_gather(view, [one.payload for one in targets])
            for target in targets:
                target.store()
            return done

        return self._collective(go)

    def _ring_gather(self, view: View, payloads: Sequence[memoryview]) -> bool:
        size = view.plan.size
        if size == 1 or not payloads[0].nbytes:
            return True
        pieces = [chunks_of(payload) for payload in payloads]

        def landing(_step: int, segment: int, chunk: int) -> memoryview:
            return pieces[segment][chunk]

        def landed(_step: int, segment: int, chunk: int, elsewhere: memoryview | None) -> None:
            if elsewhere is not None:
                pieces[segment][chunk][:] = elsewhere

        return self._go_round(
            view,
            Pass(
                size,
                view.plan.me,
                size - 1,
                len(pieces[0]),
                lambda segment, chunk: pieces[segment][chunk],
                landing,
                landed,
            ),
            size * payloads[0].nbytes,
        )

    def gather(self, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int) -> bool:
        """Give the root each member's tensor."""
        view = self._view
        if view is None:
            return False
        spare = [torch.empty_like(tensor) for _ in range(view.plan.size)]
        into = outputs if outputs is not None and view.plan.me == root else spare
        return self.all_gather(into, tensor)

    def scatter(self, output: Tensor, inputs: Sequence[Tensor] | None, root: int) -> bool:
        """Give member i the root's `inputs[i]`."""
        view = self._view
        if view is None:
            return False
        if view.plan.me == root and inputs is not None:
            every = torch.stack([one.detach() for one in inputs])
        else:
            every = torch.empty((view.plan.size, *output.shape), dtype=output.dtype)
        done = self.broadcast(every, root)
        if done:
            output.detach().copy_(every[view.plan.me])
        return done

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
        """Give member j `inputs[j]`, and put what member j gave into `outputs[j]`."""
        view = self._view
        if view is None or self._broken is not None:
            return False
        me, size = view.plan.me, view.plan.size
        outputs[me].detach().copy_(inputs[me].detach())
        tickets = []
        for distance in range(1, size):
            to, source = (me + distance) % size, (me - distance) % size
            tickets.append(self.post_receive(outputs[source], source, EXCHANGE_TAG))
            tickets.append(self.post_send(inputs[to], to, EXCHANGE_TAG))
        return all(ticket is not None and ticket.wait() for ticket in tickets)

    # --- common parts -----------------------------------------------------------------------------

    def _collective(self, go: Callable[[View], bool]) -> bool:
        with self._turn:
            if self._broken is not None or self._view is None:
                return False
            with np.errstate(all="ignore"):  # infinities and NaN travel silently, as in torch
                return go(self._view)

    def _go_round(self, view: View, trip: Pass, nbytes: int) -> bool:
        previous, following = self._ring(view)
        lanes = trip.lanes(self._stamp(), previous, following)
        if nbytes < TWO_THREADS_BYTES_MIN or following.shares:
            return self._run(lanes)
        return self._run_in_two(trip.progress, lanes)

    def _ring(self, view: View) -> tuple[BulkStream, BulkStream]:
        me, size = view.plan.me, view.plan.size
        return view.links[(me - 1) % size].bulk, view.links[(me + 1) % size].bulk

    def _scratch_for(self, array: Array) -> Array:
        """One chunk's worth of memory of the array's type, kept for the group's life."""
        if self._scratch is None:
            self._scratch = np.empty(CHUNK_BYTES_MAX, dtype=np.uint8)
        return self._scratch.view(array.dtype)
