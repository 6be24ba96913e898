"""Users, their rights as a table, and their certificates as files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from controlplane.access import Level, User, commands_of, users_of
from controlplane.certificates import Authority
from controlplane.errors import BadAccess, CertificatesRefused
from controlplane.eventlog.keys import Keys
from statemachine.errors import BadName
from statemachine.ids import Incarnation, NodeId

KEYS = Keys("f0")
NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)


def may(user: User, key: bytes, level: Level) -> bool:
    """Whether a user's rights cover a key."""
    return any(
        (key == grant.start if not grant.end else grant.start <= key < grant.end)
        and grant.level >= level
        for grant in user.grants
    )


def user(file: str, *nodes: str) -> User:
    """One user of fleet f0."""
    (found,) = (each for each in users_of("f0", nodes) if each.file == file)
    return found


@given(NAMES)
def test_a_worker_may_speak_for_any_node_and_for_nobody_else(name: str) -> None:
    """Whatever a node is called; what begins with `operator.` is people's."""
    fact = KEYS.inbox(name, 1, 1)
    assert may(user("worker"), fact, Level.READWRITE) is not name.startswith("operator.")
    assert may(user("operator"), fact, Level.READWRITE) is name.startswith("operator.")


@given(NAMES)
def test_a_nodes_user_may_speak_for_it_alone(name: str) -> None:
    """Also if the other's name begins with its own."""
    one = Incarnation(1)
    node = NodeId(name)
    mine = name == "n1"
    for key in (
        KEYS.inbox(name, 1, 1),
        KEYS.node(node, one),
        KEYS.vitals(node, one),
        KEYS.fenced(node, one),
        KEYS.counter(name),
        KEYS.incarnations(node),
    ):
        assert may(user("node-n1", "n1"), key, Level.READWRITE) is mine


def test_only_the_controller_decides() -> None:
    """Log, head, leadership and topologies are written by nobody else."""
    for each in users_of("f0", ["n0", "n1"]) + users_of("f0"):
        for key in (KEYS.log(1), KEYS.head, KEYS.leader, KEYS.orders(NodeId("n0"))):
            assert may(each, key, Level.READWRITE) is (each.file == "controller"), each.name


def test_a_fleet_has_a_worker_or_its_nodes() -> None:
    """Naming nodes makes one user for each, once; naming none makes one for all."""
    assert [each.name for each in users_of("f0")] == ["f0.controller", "f0.operator", "f0.worker"]
    named = [each.name for each in users_of("f0", ["n0", "n1", "n0"])]
    assert named == ["f0.controller", "f0.operator", "f0.node.n0", "f0.node.n1"]


@pytest.mark.parametrize(
    ("fleet", "node", "error", "words"),
    [
        ("F", "n0", BadName, "fleet name 'F'"),
        ("f0", "N0", BadName, "node name 'N0'"),
        ("f0", "operator.ann", BadAccess, "are people's"),
        ("f" * 40, "n" * 30, BadAccess, "a certificate has room for 64"),
    ],
)
def test_a_name_that_cannot_be_a_user_is_refused(
    fleet: str, node: str, error: type[Exception], words: str
) -> None:
    """In words that say which name, and why."""
    with pytest.raises(error, match=words):
        users_of(fleet, [node])


def test_the_commands_say_the_same_as_the_table() -> None:
    """Each right is one line for an administrator, with its reason; asking begins last."""
    users = users_of("f0", ["n0"])
    lines = commands_of(users)
    rights = [line for line in lines if "grant-permission" in line]
    assert len(rights) == sum(len(each.grants) for each in users)
    assert rights[0] == (
        "etcdctl role grant-permission f0.controller readwrite /changeover/f0/ /changeover/f00"
        "  # sequences, decides, fences, projects"
    )
    assert "etcdctl role grant-permission f0.node.n0 read /changeover/f0/schema  #" in "\n".join(
        lines
    )
    assert lines[:2] == (
        "etcdctl user add root --no-password",
        "etcdctl user grant-role root root",
    )
    assert lines[-1] == "etcdctl auth enable"


# --- certificates ---------------------------------------------------------------------------------


def common_name(path: Path) -> list[str]:
    """The common names of a certificate's subject: one or none."""
    subject = x509.load_pem_x509_certificate(path.read_bytes()).subject
    names = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return [str(each.value) for each in names]


def test_a_certificate_bears_its_users_name(tmp_path: Path) -> None:
    """A client's is its user in etcd; the server's is nobody's, since its gateway would be that."""
    made = Authority(tmp_path, days=2).make(users_of("f0", ["n0"]), ["10.0.0.1", "etcd.example"])

    assert common_name(tmp_path / "node-n0.pem") == ["f0.node.n0"]
    assert common_name(tmp_path / "root.pem") == ["root"]
    assert common_name(tmp_path / "server.pem") == []
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each.value) for each in names] == ["10.0.0.1", "etcd.example"]
    assert sorted(made) == sorted(each.name for each in tmp_path.iterdir())


def test_keys_are_their_owners(tmp_path: Path) -> None:
    """Nobody else on the machine may read one."""
    Authority(tmp_path, days=2).make(users_of("f0"))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("*.key")}
    assert modes == {0o600}


def test_what_is_there_stays(tmp_path: Path) -> None:
    """A second run adds the new node and touches nothing."""
    Authority(tmp_path, days=2).make(users_of("f0", ["n0"]))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    made = Authority(tmp_path, days=2).make(users_of("f0", ["n0", "n1"]))
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    assert sorted(made) == ["node-n1.key", "node-n1.pem"]
    assert before == {name: content for name, content in after.items() if name in before}


def test_without_the_authoritys_key_nothing_new_is_signed(tmp_path: Path) -> None:
    """It is kept elsewhere, as it should be: said in one line, and nothing is made."""
    Authority(tmp_path, days=2).make(users_of("f0", ["n0"]))
    (tmp_path / "ca.key").unlink()
    with pytest.raises(CertificatesRefused, match=r"ca.key is not there"):
        Authority(tmp_path, days=2).make(users_of("f0", ["n1"]))
    assert not list(tmp_path.glob("node-n1*"))
    assert Authority(tmp_path, days=2).make(users_of("f0", ["n0"])) == ()


def test_a_damaged_authority_is_named(tmp_path: Path) -> None:
    """A file that is no certificate is not taken for one."""
    (tmp_path / "ca.pem").write_text("nobody's")
    (tmp_path / "ca.key").write_text("nobody's")
    with pytest.raises(CertificatesRefused, match=r"ca.pem or its key cannot be read"):
        Authority(tmp_path, days=2).make(users_of("f0"))


def test_a_host_that_is_none_is_refused(tmp_path: Path) -> None:
    """Neither an address nor a name; nothing is made."""
    with pytest.raises(BadAccess, match="host 'a b'"):
        Authority(tmp_path, days=2).make(users_of("f0"), ["a b"])
    assert list(tmp_path.iterdir()) == []
