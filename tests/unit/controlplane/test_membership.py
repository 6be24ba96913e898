"""Who has no key, and for how long they may."""

from controlplane.membership import Absentees
from statemachine.ids import Incarnation, NodeId

N0, N1 = (NodeId("n0"), Incarnation(1)), (NodeId("n1"), Incarnation(4))


def test_an_absence_is_overdue_when_its_patience_is_over() -> None:
    """Not before, and only once."""
    absentees = Absentees()
    absentees.missed(N1, 10.0)
    absentees.missed(N0, 12.0)
    assert (absentees.next_due(), absentees.overdue(9.9)) == (10.0, ())
    assert absentees.overdue(10.0) == (N1,)
    assert absentees.overdue(12.0) == (N0,)
    assert (absentees.next_due(), absentees.overdue(99.0)) == (None, ())


def test_a_second_look_does_not_prolong_an_absence() -> None:
    """The first patience counts, however often the key is missed."""
    absentees = Absentees()
    absentees.missed(N0, 10.0)
    absentees.missed(N0, 50.0)
    assert absentees.overdue(10.0) == (N0,)


def test_whoever_comes_back_in_time_is_not_overdue() -> None:
    """The same incarnation took its key again."""
    absentees = Absentees()
    absentees.missed(N0, 10.0)
    absentees.found(N0)
    assert absentees.overdue(11.0) == ()
