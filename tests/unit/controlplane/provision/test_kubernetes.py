"""The official Kubernetes client against an API server that checks what it is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from controlplane.provision.kubernetes import ANNOTATION, KubernetesProvisioner
from controlplane.provision.port import Standing, ToolRefused

client = pytest.importorskip("kubernetes.client", reason="the extra `kubernetes` is not installed")

PATCHES = ("application/strategic-merge-patch+json", "application/merge-patch+json")
TOKEN = "a service account's token"


def node(name: str, ready: str = "True") -> dict[str, Any]:
    """A node as the API server shows it."""
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name, "annotations": {}},
        "spec": {},
        "status": {
            "conditions": [
                {"type": "MemoryPressure", "status": "False", "reason": "KubeletOk"},
                {"type": "Ready", "status": ready, "reason": "KubeletReady"},
            ]
        },
    }


class ApiServer:
    """Nodes, and the two requests that may be made of them; anything else is complained of."""

    def __init__(self) -> None:
        self.nodes = {"gpu-07": node("gpu-07")}
        self.patches: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        self.fails_with = 0
        server = self

        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(*server.get(self.path, dict(self.headers)))

            def do_PATCH(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(*server.patch(self.path, dict(self.headers), raw))

            def _answer(self, code: int, value: dict[str, Any]) -> None:
                body = json.dumps(value).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._thread = threading.Thread(target=self.http.serve_forever, args=(0.02,))
        self._thread.start()

    def _name(self, path: str, headers: dict[str, str]) -> str:
        if headers.get("authorization", headers.get("Authorization")) != f"Bearer {TOKEN}":
            self.complaints.append("no token")
        prefix, _, name = path.partition("?")[0].rpartition("/")
        if prefix != "/api/v1/nodes":
            self.complaints.append(f"asked for {path}")
        return name

    def get(self, path: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Read a node."""
        name = self._name(path, headers)
        if self.fails_with:
            return self.fails_with, {"kind": "Status", "status": "Failure"}
        if name not in self.nodes:
            return 404, {"kind": "Status", "status": "Failure", "reason": "NotFound"}
        return 200, self.nodes[name]

    def patch(self, path: str, headers: dict[str, str], raw: bytes) -> tuple[int, dict[str, Any]]:
        """Change a node, by the two fields that we may change."""
        name = self._name(path, headers)
        if headers.get("Content-Type") not in PATCHES:
            self.complaints.append(f"a patch as {headers.get('Content-Type')}")
        body = json.loads(raw)
        if set(body) != {"metadata", "spec"} or set(body["spec"]) != {"unschedulable"}:
            self.complaints.append(f"a patch of {body}")
        if set(body["metadata"]) != {"annotations"}:
            self.complaints.append(f"a patch of {body['metadata']}")
        self.patches.append(body)
        mine = self.nodes[name]
        for part, changes in (
            (mine["spec"], body["spec"]),
            (mine["metadata"]["annotations"], body["metadata"]["annotations"]),
        ):
            for field, value in changes.items():
                part.pop(field, None)
                if value is not None:
                    part[field] = value
        return 200, mine

    def close(self) -> None:
        """Stop."""
        self.http.shutdown()
        self._thread.join()
        self.http.server_close()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """An API server of this test's own, which must have nothing to complain of in the end."""
    made = ApiServer()
    yield made
    made.close()
    assert made.complaints == []


@pytest.fixture
def cluster(server: ApiServer) -> Iterator[KubernetesProvisioner]:
    """The provisioner, connected to it."""
    settings = client.Configuration(host=f"http://127.0.0.1:{server.http.server_port}")
    settings.api_key = {"authorization": f"Bearer {TOKEN}"}
    settings.retries = 0
    api = client.ApiClient(settings)
    yield KubernetesProvisioner(client.CoreV1Api(api))
    api.close()


async def test_a_node_is_cordoned_and_uncordoned(
    server: ApiServer, cluster: KubernetesProvisioner
) -> None:
    """Unschedulable with our annotation, and back; twice is once."""
    await cluster.cordon("gpu-07", "failed its\nsweep")
    await cluster.cordon("gpu-07", "again")
    assert server.nodes["gpu-07"]["spec"] == {"unschedulable": True}
    assert server.nodes["gpu-07"]["metadata"]["annotations"] == {ANNOTATION: "failed its sweep"}
    assert (await cluster.condition("gpu-07")).standing is Standing.CORDONED

    await cluster.uncordon("gpu-07")
    await cluster.uncordon("gpu-07")
    assert server.nodes["gpu-07"]["spec"] == {}
    assert server.nodes["gpu-07"]["metadata"]["annotations"] == {}
    assert len(server.patches) == 2


async def test_what_somebody_else_cordoned_stays(
    server: ApiServer, cluster: KubernetesProvisioner
) -> None:
    """Neither marked as ours nor given back."""
    server.nodes["gpu-07"]["spec"]["unschedulable"] = True

    await cluster.cordon("gpu-07", "slow")
    with pytest.raises(ToolRefused, match="somebody else"):
        await cluster.uncordon("gpu-07")

    assert server.patches == []


@pytest.mark.parametrize(
    ("ready", "standing"),
    [
        ("True", Standing.IN_SERVICE),
        ("False", Standing.DOWN),
        ("Unknown", Standing.UNKNOWN),
    ],
)
async def test_a_condition_is_read_as_kubernetes_means_it(
    server: ApiServer, cluster: KubernetesProvisioner, ready: str, standing: Standing
) -> None:
    """A kubelet that does not report is unknown, not down."""
    server.nodes["gpu-07"] = node("gpu-07", ready)

    assert (await cluster.condition("gpu-07")).standing is standing


@pytest.mark.parametrize("code", [401, 403, 500, 503])
async def test_an_api_server_that_refuses_is_told_and_nothing_is_changed(
    server: ApiServer, cluster: KubernetesProvisioner, code: int
) -> None:
    """With its code; a missing node likewise."""
    server.fails_with = code

    with pytest.raises(ToolRefused, match=str(code)):
        await cluster.cordon("gpu-07", "slow")

    assert server.patches == []


async def test_a_missing_node_is_told(cluster: KubernetesProvisioner) -> None:
    """A wrong name is not another node."""
    with pytest.raises(ToolRefused, match="404"):
        await cluster.cordon("gpu-70", "slow")


async def test_an_api_server_that_is_away_is_told() -> None:
    """Nobody listens: a clear error, in time."""
    settings = client.Configuration(host="http://127.0.0.1:9")
    settings.retries = 0
    api = client.ApiClient(settings)

    with pytest.raises(ToolRefused, match="no API server answers"):
        await KubernetesProvisioner(client.CoreV1Api(api)).cordon("gpu-07", "slow")
    api.close()
