"""Draw the lifecycle tables: `make docs` writes lifecycle.md and the diagrams of other pages, and
`--check` fails where one is stale.

The tables in `statemachine/lifecycle.py` are the truth. Nothing is said here that they do not say.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from statemachine import lifecycle
from statemachine.events import Event

PAGE = Path(__file__).with_name("lifecycle.md")
OPENING = """\
# Lifecycles

Drawn by `make docs` from the tables in `statemachine/lifecycle.py`. Do not edit: a test compares.
An event that has no arrow from a state leaves it as it is.
"""

S = TypeVar("S", bound=StrEnum)


def meanings(states: type[StrEnum]) -> dict[str, str]:
    """What the source says below each state, by the state's name in the table."""
    body = ast.parse(inspect.getsource(states)).body[0]
    assert isinstance(body, ast.ClassDef)
    said: dict[str, str] = {}
    name = ""
    for node in body.body:
        match node:
            case ast.Assign(value=ast.Constant(value=str() as value)):
                name = value
            case ast.Expr(value=ast.Constant(value=str() as text)) if name:
                said[name] = " ".join(text.split())
            case _:
                pass
    return said


def everywhere(table: Mapping[S, Mapping[type[Event], S]]) -> dict[type[Event], S]:
    """The events that lead to one and the same state from every state but those they lead to."""
    common = dict(next(iter(table.values())))
    ends = set(common.values())
    for state, row in table.items():
        if state not in ends:
            common = {event: end for event, end in common.items() if row.get(event) == end}
            ends = set(common.values())
    return common if len(table) > len(ends) + 1 else {}


def arrows(row_of: Mapping[S, Mapping[type[Event], S]]) -> Iterator[str]:
    """One arrow for each pair of states, with every event that leads along it."""
    for state, row in row_of.items():
        labels: dict[S, list[str]] = {}
        for event, target in row.items():
            labels.setdefault(target, []).append(event.__name__)
        for target, names in labels.items():
            yield f"{state} --> {target}: {', '.join(names)}"


def diagram(states: type[S], table: Mapping[S, Mapping[type[Event], S]]) -> Iterator[str]:
    """The mermaid diagram of one table; what holds in every state is drawn once, around them."""
    common = everywhere(table)
    inside = {
        state: {event: end for event, end in row.items() if event not in common}
        for state, row in table.items()
        if state not in common.values()
    }
    yield "stateDiagram-v2"
    if common:
        yield "  state present {"
        yield f"    [*] --> {next(iter(states))}"
        yield from (f"    {arrow}" for arrow in arrows(inside))
        yield "  }"
        yield "  [*] --> present"
        yield from (f"  present --> {end}: {event.__name__}" for event, end in common.items())
        outside = {state: row for state, row in table.items() if state in common.values()}
        yield from (f"  {arrow}" for arrow in arrows(outside))
    else:
        yield f"  [*] --> {next(iter(states))}"
        yield from (f"  {arrow}" for arrow in arrows(table))
    yield from (f"  {state} --> [*]" for state, row in table.items() if not row)


def section(title: str, states: type[S], table: Mapping[S, Mapping[type[Event], S]]) -> str:
    """Heading, diagram, and the list of states with their meaning."""
    said = meanings(states)
    lines = ["", f"## {title}", "", "```mermaid", *diagram(states, table), "```"]
    if said:
        lines += ["", "| state | meaning |", "|---|---|"]
        lines += [f"| {state} | {said.get(state, '')} |" for state in states]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""
    return OPENING + "".join(
        (
            section("A node", lifecycle.NodeState, lifecycle.NODE_TABLE),
            section("A transition", lifecycle.Phase, lifecycle.TRANSITION_TABLE),
            section("A warm-up of one role", lifecycle.Warmth, lifecycle.WARMUP_TABLE),
        )
    )


CONCEPTS = Path(__file__).parents[1] / "concepts.md"
DRAWN = re.compile(r"(?<=<!-- drawn: (\w{10}) -->\n)```mermaid\n.*?^```$", re.MULTILINE | re.DOTALL)


def concepts(text: str) -> str:
    """The page of concepts with the diagrams of today where it has some."""
    tables = {
        "transition": "\n".join(diagram(lifecycle.Phase, lifecycle.TRANSITION_TABLE)),
        "rehearsals": "\n".join(diagram(lifecycle.Warmth, lifecycle.WARMUP_TABLE)),
    }
    return DRAWN.sub(lambda found: f"```mermaid\n{tables[found[1]]}\n```", text)


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` compare them; 1 where one differs."""
    pages = {PAGE: page(), CONCEPTS: concepts(CONCEPTS.read_text("utf-8"))}
    stale = [path for path, text in pages.items() if path.read_text("utf-8") != text]
    if arguments != ["--check"]:
        for path in stale:
            path.write_text(pages[path], encoding="utf-8")
        return 0
    for path in stale:
        print(f"{path.name} does not show the tables of today: run 'make docs'", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
