"""Kubernetes, through its official client (extra `changeover[kubernetes]`): cordon, uncordon, ask.

Rules. A node is cordoned by `spec.unschedulable` with an annotation that is ours, and uncordoned
only where that annotation is: what an administrator cordoned stays so. Nothing is evicted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread

from controlplane.provision.port import (
    Condition,
    NotOffered,
    ProvisionerError,
    Standing,
    ToolMissing,
    ToolRefused,
)

ANNOTATION: Final = "changeover.dev/cordoned"
TIMEOUT_S: Final = 20.0

T = TypeVar("T")


class KubernetesProvisioner:
    """Speaks to one cluster. `nodes` is the client's core API."""

    def __init__(self, nodes: Any) -> None:
        self._nodes = nodes

    async def cordon(self, machine: str, reason: str) -> None:
        """Make a node unschedulable, unless it is already."""
        node = await self._read(machine)
        if node.spec.unschedulable:
            return
        flat = " ".join(reason.split())[:200]
        await self._patch(machine, unschedulable=True, annotation=flat or "no reason given")

    async def uncordon(self, machine: str) -> None:
        """Make a node schedulable again, if it was us who cordoned it."""
        node = await self._read(machine)
        if not node.spec.unschedulable:
            return
        if ANNOTATION not in (node.metadata.annotations or {}):
            raise ToolRefused(f"node {machine} was cordoned by somebody else")
        await self._patch(machine, unschedulable=None, annotation=None)

    async def condition(self, machine: str) -> Condition:
        """Its condition `Ready`, and whether it is cordoned."""
        node = await self._read(machine)
        conditions = {each.type: each for each in (node.status.conditions or ())}
        ready = conditions.get("Ready")
        words = f"Ready={ready.status} ({ready.reason})" if ready is not None else "no condition"
        if ready is not None and ready.status == "False":
            return Condition(standing=Standing.DOWN, words=words)
        if ready is None or ready.status != "True":
            return Condition(standing=Standing.UNKNOWN, words=words)
        cordoned = bool(node.spec.unschedulable)
        return Condition(
            standing=Standing.CORDONED if cordoned else Standing.IN_SERVICE, words=words
        )

    async def request(self, count: int, reason: str) -> None:
        """Machines come from a node pool's own scaler."""
        raise NotOffered(f"Kubernetes is not asked for {count} machines: scale the node pool")

    async def _read(self, machine: str) -> Any:
        return await _called(
            machine, lambda: self._nodes.read_node(machine, _request_timeout=TIMEOUT_S)
        )

    async def _patch(
        self, machine: str, *, unschedulable: bool | None, annotation: str | None
    ) -> None:
        body = {
            "metadata": {"annotations": {ANNOTATION: annotation}},
            "spec": {"unschedulable": unschedulable},
        }
        await _called(
            machine, lambda: self._nodes.patch_node(machine, body, _request_timeout=TIMEOUT_S)
        )


async def _called(machine: str, ask: Callable[[], T]) -> T:
    """Ask the API server, in a thread; its errors become ours.

    Raises:
        ToolRefused: it answered with an error, or not at all.
    """
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        with anyio.fail_after(TIMEOUT_S * 2):
            return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
    except ApiException as error:
        raise ToolRefused(
            f"node {machine}: the API server says {error.status} {error.reason}"
        ) from None
    except (HTTPError, TimeoutError, ValueError) as error:
        raise ToolRefused(
            f"node {machine}: no API server answers ({type(error).__name__})"
        ) from None


def connect(context: str = "") -> KubernetesProvisioner:
    """Connect by the pod's service account, else by the kubeconfig.

    Raises:
        ToolMissing: the client is not installed.
        ProvisionerError: there is no configuration.
    """
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise ToolMissing(
            "the Kubernetes client is not installed: pip install 'changeover[kubernetes]'"
        ) from error
    try:
        if context:
            config.load_kube_config(context=context)
        else:
            config.load_config()
    except config.ConfigException as error:
        raise ProvisionerError(f"no Kubernetes configuration: {error}") from error
    api = client.ApiClient()
    api.configuration.retries = 1
    return KubernetesProvisioner(client.CoreV1Api(api))
