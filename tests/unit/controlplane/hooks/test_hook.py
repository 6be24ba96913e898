"""Hooks as they are written down: refused with the field, the value and what is allowed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2
import pytest

from controlplane.config import load_settings
from controlplane.errors import BadConfig
from controlplane.hooks.hook import heartbeat_of, hooks_of
from controlplane.hooks.rendering import render, values_of
from statemachine import events as e
from statemachine.ids import Incarnation, NodeId, Position

ROOT = Path(__file__).parents[4]
GOOD: dict[str, Any] = {"name": "pager", "on": ["NodeLost"], "url": "https://example.org/hook"}


def without(*names: str) -> dict[str, Any]:
    """A good hook without some of its fields."""
    return {name: value for name, value in GOOD.items() if name not in names}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (without("name"), "name"),
        (GOOD | {"name": "A B"}, "hooks[0].name"),
        (GOOD | {"on": ["NodeLots"]}, "did you mean NodeLost?"),
        (GOOD | {"on": []}, "must name a type of event"),
        (without("url"), "needs url, url_env or exec"),
        (GOOD | {"url": "ftp://example.org"}, "must be an http or https address"),
        (GOOD | {"exec": ["x"]}, "choose one"),
        (GOOD | {"url_env": "HERE"}, "choose one"),
        (without("url") | {"url_env": "NOT_HERE"}, "no such environment variable"),
        (GOOD | {"authorization_env": "NOT_HERE"}, "no such environment variable"),
        (GOOD | {"body": "{{ nod }}"}, "no such name"),
        (GOOD | {"body": "{{ node"}, "is no template"),
        (GOOD | {"key": "{{ event.__class__ }} {{ x }}"}, "no such name"),
        (GOOD | {"body": "x" * 10_000_000}, "at most 16384 are allowed"),
        (GOOD | {"key": "{{ " + "(" * 9_000 + "1" + ")" * 9_000 + " }}"}, "at most 16384"),
        (GOOD | {"key": "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}"}, "is no template"),
        (GOOD | {"timeout_s": 0}, "must be above 0 seconds"),
        (GOOD | {"tries": 0}, "from 1 to 100"),
        (GOOD | {"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_hook_is_refused_when_it_is_read(table: dict[str, Any], words: str) -> None:
    """Not at three in the morning."""
    with pytest.raises(BadConfig) as refused:
        hooks_of([table], "f.toml", {"HERE": "https://example.org"})

    assert "f.toml: hooks" in str(refused.value)
    assert words in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_refusal_never_shows_a_secret_address() -> None:
    """An address from the environment is named by its variable."""
    with pytest.raises(BadConfig) as refused:
        hooks_of([without("url") | {"url_env": "SECRET_URL"}], "f", {"SECRET_URL": "x://s3cr3t"})

    assert "s3cr3t" not in str(refused.value)


def test_two_hooks_of_one_name_are_refused() -> None:
    """Metrics and keys go by it."""
    with pytest.raises(BadConfig, match="named twice"):
        hooks_of([GOOD, GOOD], "f", {})


def test_a_heartbeat_needs_an_address_and_a_period() -> None:
    """Silence must mean something."""
    with pytest.raises(BadConfig, match="needs url or url_env"):
        heartbeat_of({}, "f", {})
    with pytest.raises(BadConfig, match="above 0"):
        heartbeat_of({"url": "https://example.org", "every_s": 0}, "f", {})


GUIDE = (ROOT / "docs" / "operate" / "hooks.md").read_text("utf-8")
BLOCKS = re.findall(r"^```toml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split()[0])
def test_every_block_of_the_guide_is_taken_as_it_stands(block: str, tmp_path: Path) -> None:
    """What docs/operate/hooks.md prints goes into a settings file, and all of it is understood."""
    target = tmp_path / "c.toml"
    target.write_text(block)
    environment = dict.fromkeys(re.findall(r'_env = "(\w+)"', block), "https://example.org/secret")

    found = load_settings({}, environment, target)

    tables = set(re.findall(r"^\[+(\w+)\]", block, re.MULTILINE))
    assert tables
    assert all(getattr(found, name) for name in tables)
    for hook in found.hooks:
        entry = e.Recorded(
            position=Position(7),
            at_ms=1,
            writer="c0",
            event=e.NodeQuarantined(node=NodeId("n1"), incarnation=Incarnation(1), reason="slow"),
        )
        values = values_of("lab", entry)
        told = [render(text, values) for text in (hook.body, hook.key, *hook.exec) if text]
        assert "{{" not in "".join(told)


def test_a_settings_file_holds_hooks_beside_the_rest(tmp_path: Path) -> None:
    """Hooks, heartbeat and scheduler stand beside the fleet's name."""
    target = tmp_path / "c.toml"
    target.write_text(
        '[fleet]\nname = "lab"\n[[hooks]]\nname = "pager"\non = ["NodeLost"]\n'
        'exec = ["notify", "{{ node }}"]\n[heartbeat]\nurl = "https://example.org"\n'
        '[provisioner]\nkind = "slurm"\n'
    )

    found = load_settings({}, {}, target)

    assert (found.fleet, found.hooks[0].exec) == ("lab", ("notify", "{{ node }}"))
    assert found.heartbeat is not None
    assert found.provisioner is not None
    assert found.provisioner.kind == "slurm"


def test_a_template_cannot_leave_its_sandbox() -> None:
    """What a node reports is data: it is not rendered again, and reaches no module."""
    recorded = e.Recorded(
        position=Position(1),
        at_ms=1,
        writer="c0",
        event=e.NodeLost(node=NodeId("n1"), incarnation=Incarnation(1), reason="{{ 7 * 7 }}"),
    )

    assert render("{{ reason }}", values_of("lab", recorded)) == "{{ 7 * 7 }}"
    with pytest.raises(Exception, match="unsafe"):
        render("{{ event.__class__.__mro__ }}", values_of("lab", recorded))


LOST = values_of(
    "lab",
    e.Recorded(
        position=Position(1),
        at_ms=1,
        writer="c0",
        event=e.NodeLost(node=NodeId("n1"), incarnation=Incarnation(1), reason="gone"),
    ),
)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'x' * 10 ** 10 }}",
        "{{ node * 10000000000 }}",
        "{{ [1] * 10000000000 }}",
        "{{ 10 ** 1000000000 }}",
        "{{ position // 0 }}",
        "{{ position + node }}",
        "{{ event.nothing.more }}",
    ],
)
def test_a_slip_of_the_pen_costs_one_message(text: str) -> None:
    """A template that does too much, or comes to nothing, fails as one, at once."""
    with pytest.raises(jinja2.TemplateError):
        render(text, LOST)


def test_a_message_that_never_ends_is_cut() -> None:
    """It is written piece by piece, and no further than anybody reads."""
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}xx{% endfor %}{% endfor %}"

    assert len(render(endless, LOST)) == 64 * 1024
