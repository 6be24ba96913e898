"""Answers of members: like a mapping of names, and every earlier one stays as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from statemachine.answers import Answers, numbered
from statemachine.ids import NodeId

NAMES = st.integers(0, 199).map(lambda number: NodeId(f"n{number}"))


@given(st.sets(NAMES, max_size=200), st.lists(st.tuples(NAMES, st.integers(0, 9)), max_size=50))
def test_it_is_a_mapping(names: set[NodeId], said: list[tuple[NodeId, int]]) -> None:
    """Whatever is answered in whatever order, it holds what a dict would, and no version changes
    when another is made of it.
    """
    answers: Answers[int] = Answers.among(numbered(names))
    expected: dict[NodeId, int] = {}
    versions = [(answers, dict(expected))]
    for name, value in said:
        if name in names:
            answers, expected = answers.insert(name, value), {**expected, name: value}
            versions.append((answers, dict(expected)))

    for version, held in versions:
        assert dict(version.items()) == held
        assert list(version) == sorted(held)
        assert len(version) == len(held)
        assert all((name in version) == (name in held) for name in names)
        assert all(version.get(name) == held.get(name) for name in names)


def test_a_stranger_did_not_answer() -> None:
    """Who is no member has no answer, and none is in the empty answers of a fresh transition."""
    assert Answers[int]().get(NodeId("n1")) is None
    assert NodeId("x") not in Answers[int].among(numbered([NodeId("n1")]))
