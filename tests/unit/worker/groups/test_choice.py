"""What groups have inside is chosen in one word, and a word that means nothing is refused."""

import pytest
from torch._C._distributed_c10d import TCPStore

from controlplane.etcd_server import free_port
from worker.groups.choice import GROUPS_VARIABLE, BadChoice, chosen
from worker.groups.delta import DeltaBackend
from worker.groups.links import LinkEndpoint


def test_links_of_our_own_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody chooses, and where somebody chooses it, it is `delta`."""
    monkeypatch.delenv(GROUPS_VARIABLE, raising=False)

    assert chosen() is DeltaBackend
    assert chosen("delta") is DeltaBackend


def test_rebuilt_groups_are_made_with_the_store_that_was_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The environment's choice holds where the script makes none."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv(GROUPS_VARIABLE, f"rebuild://127.0.0.1:{store.port}")
    endpoint = LinkEndpoint("j", "n0", 1, b"0" * 16)
    try:
        made = chosen()("dp", endpoint, lambda *_: None, 5.0)
        assert made.capabilities.name == "rebuild-gloo"
    finally:
        endpoint.close()


@pytest.mark.parametrize("words", ["gloo", "rebuild", "rebuild://", "rebuild://h", "rebuild://h:p"])
def test_what_there_is_not_is_refused_by_name(words: str) -> None:
    """One line says what was asked for, and what there is."""
    with pytest.raises(BadChoice, match=r"must be delta, or rebuild://HOST:PORT"):
        chosen(words)


def test_a_store_that_nobody_keeps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebuilt groups cannot meet where nobody answers."""
    monkeypatch.setattr("worker.groups.choice._MEET_S", 0.3)
    with pytest.raises(BadChoice, match="no store answers there"):
        chosen(f"rebuild://127.0.0.1:{free_port()}")
