"""Groups of NCCL behind the same port: built anew in the background, aborted by NCCL itself.

What belongs here: where NCCL differs from gloo. What does not: the life of a rebuilt group
(rebuild).

Rules. A communicator is made at its first collective, so one is run while preparing: the pause must
not pay for it. NCCL can abort, which frees kernels that wait for a peer on the device; nothing has
to be done to sockets. A rank has one device, the current one.

Not yet run on a GPU by us; `tests/gpu` holds what must be true where there is one.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from worker.groups.backend import Capabilities
from worker.groups.port import GroupPlan
from worker.groups.rebuild import Built, RebuildBackend

_torch: Any = dist


class NcclBackend(RebuildBackend):
    """The port over NCCL groups; tensors live on the current device."""

    capabilities = Capabilities(
        name="rebuild-nccl",
        abort_is_immediate=True,
        prepares_in_background=True,
        links_survive_switch=False,
        direct_messages=False,
        notices_reset_while_idle=False,
    )

    def __init__(self, name: str, store: Any, op_timeout_s: float = 300.0) -> None:
        super().__init__(name, store, op_timeout_s)
        self.device = torch.device("cuda", torch.cuda.current_device())

    def _build(self, plan: GroupPlan, deadline_s: float) -> Built:
        store = self._store_for(plan, deadline_s)
        options = _torch.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=self._op_timeout_s)
        with torch.cuda.device(self.device):
            group = _torch.ProcessGroupNCCL(store, plan.me, plan.size, options)
            first = torch.zeros(1, device=self.device)
            group.allreduce([first], _torch.AllreduceOptions()).wait(timedelta(seconds=deadline_s))
            torch.cuda.current_stream().synchronize()
        return Built(plan, group, [])

    def _get_out(self, built: Built) -> None:
        built.group.abort()
