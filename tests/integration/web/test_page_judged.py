"""The live page judged as an accessibility tool and a suspicious reader would, in a real Chromium.

`JUDGE` computes what such tools compute: the contrast of every text with what is behind it (AA of
WCAG 2.2), names of controls, ids that are there once, headings in order, tables with scopes.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from controlplane.web.serving import Address, serving
from statemachine import events as e
from statemachine.ids import Incarnation, NodeId
from statemachine.lifecycle import NodeState
from tests.integration.web.chromium import Browser, Tab
from tests.integration.web.conftest import Watch
from tests.integration.web.test_page import launched
from tests.simulation.fleet import Fleet

pytestmark = [pytest.mark.etcd, pytest.mark.slow, pytest.mark.timeout(120)]

JUDGE = """(() => {
  const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const numbers = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const behind = (one) => {
    for (let each = one; each; each = each.parentElement) {
      const found = numbers(getComputedStyle(each).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const faults = [];
  for (const one of document.querySelectorAll('body *')) {
    const own = [...one.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    const style = getComputedStyle(one);
    if (!own || !one.checkVisibility() || parseFloat(style.fontSize) === 0) continue;
    const ink = numbers(one.closest('svg') ? style.fill : style.color).slice(0, 3);
    const [a, b] = [light(ink), light(behind(one))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const words = `${one.className} ${one.textContent.slice(0, 30)}`;
    if (ratio < 4.5) faults.push(`contrast ${ratio.toFixed(2)}: ${words}`);
  }
  const all = (what) => [...document.querySelectorAll(what)];
  const wrong = (words, found) => faults.push(...found.map((one) => `${words}: ${one.outerHTML}`));
  wrong('id twice', all('[id]').filter((one) => document.getElementById(one.id) !== one));
  const labels = (one) => document.getElementById(one.getAttribute('aria-labelledby'));
  wrong('labelled by nothing', all('[aria-labelledby]').filter((one) => !labels(one)));
  wrong('a tab order of its own', all('[tabindex]').filter((one) => one.tabIndex > 0));
  wrong('no scope', all('th').filter((one) => !one.scope));
  wrong('no caption', all('table').filter((one) => !one.caption));
  const heads = all('h1, h2, h3, h4').filter((one) => one.checkVisibility());
  const level = (at) => at < 0 ? 0 : Number(heads[at].tagName[1]);
  wrong('skips a level', heads.filter((_, at) => level(at) > level(at - 1) + 1));
  if (all('h1').length !== 1) faults.push('not one h1');
  if (!document.documentElement.lang || !all('main').length) faults.push('no language or main');
  return faults;
})()"""

NAMED = (
    *("button", "textbox", "searchbox", "checkbox", "grid", "gridcell", "dialog", "region"),
    *("article", "image", "table", "group"),
)


async def faults_of(tab: Tab) -> list[str]:
    """What is wrong with what the page shows now."""
    found: list[str] = await tab.get(JUDGE)
    tree = (await tab.do("Accessibility.getFullAXTree"))["nodes"]
    return found + [
        f"no name: {node['role']['value']}"
        for node in tree
        if not node.get("ignored")
        and node["role"]["value"] in NAMED
        and not node.get("name", {}).get("value")
    ]


async def shows_every_state(tab: Tab) -> None:
    """Put a cell of each state a node can be in, and a vacant one, beside those that are there."""
    kinds = json.dumps([*(f"s-{state}" for state in NodeState), "vacant"])
    await tab.get(
        f"document.querySelector('#jobs article').append(...{kinds}.map((kind) => "
        "draw.el('button', {class: `cell ${kind}`, type: 'button'}, `n7 ${kind}`)))"
    )


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_judge_of_accessibility_finds_nothing(watch: Watch, *, dark: bool) -> None:
    """Every text has a contrast of 4.5, every control a name, in each state and each dialog."""

    async def story(fleet: Fleet, browser: Browser, address: Address) -> None:
        _, term = await launched(fleet, browser, address)
        await fleet.act(e.DecisionsPaused(by="ada"))
        term.reconciler.state_events([verdict_on(fleet, "n2", "1.2x its peers")])
        tab = await browser.open(str(address), dark=dark)
        await tab.until("document.querySelector('#verdicts')?.textContent.includes('1.2x')")
        await tab.until("document.querySelector('#alerts').textContent.includes('Paused')")
        await shows_every_state(tab)
        await asyncio.sleep(0.3)  # colours of cells fade for 250 ms
        assert await faults_of(tab) == []

        await tab.get("document.querySelector('#jobs .cell').click()")
        await tab.until("document.querySelector('#node-story').textContent.includes('NodeJoined')")
        assert await faults_of(tab) == []
        await tab.get("document.querySelector('#node-acts button').click()")
        await tab.until("document.querySelector('#ask').open")
        assert await faults_of(tab) == []
        assert tab.complaints == []

    watch(story)


def verdict_on(fleet: Fleet, node: str, reason: str) -> e.VerdictIssued:
    """A verdict with which nothing is done while decisions are paused."""
    incarnation = fleet.incarnation(node)
    suspect = e.Verdict.SUSPECT
    return e.VerdictIssued(
        node=NodeId(node), incarnation=incarnation, verdict=suspect, reason=reason, detector="test"
    )


EVIL = "<img src=x onerror=\"document.title='taken'\"><b class=evil>x</b>"
LONG = "n" + "0123456789" * 6


def test_nothing_that_a_node_or_an_operator_says_is_markup(watch: Watch) -> None:
    """Names, hosts, reasons and comments of a hostile machine are text, and do not break the page;
    a fleet without nodes and jobs says so.
    """

    async def story(fleet: Fleet, browser: Browser, address: Address) -> None:
        tab = await browser.open(str(address))
        await tab.until(
            "document.querySelector('#jobs')?.textContent === 'No job is declared yet.'"
        )
        await tab.until("document.querySelector('#beside').textContent.startsWith('nobody')")
        assert await faults_of(tab) == []

        term = await fleet.start_controller("c0")
        one = Incarnation(7)
        for name in (EVIL, LONG):
            joined = e.NodeJoined(node=NodeId(name), incarnation=one, host=EVIL)
            term.reconciler.state_events([joined])
        await fleet.act(e.DrainRequested(node=NodeId(LONG), by="ada", comment=EVIL))
        await tab.until("document.querySelector('#history').textContent.includes('Drain')")
        await tab.until("document.querySelectorAll('#beside .cell').length === 2")
        await tab.get("document.querySelector('#beside .cell').click()")
        await tab.until("document.querySelector('#node-facts').textContent.includes('onerror')")

        assert await tab.get("document.querySelectorAll('.evil, main img, dialog img').length") == 0
        assert "taken" not in await tab.get("document.title")
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await tab.get(wide) <= 0, "the page scrolls sideways"
        assert tab.complaints == []

    watch(story)


def test_who_stands_on_a_node_with_the_keyboard_stays_there(watch: Watch) -> None:
    """What is beside the run is drawn anew with every change; the focus is where it was."""

    async def story(fleet: Fleet, browser: Browser, address: Address) -> None:
        tab, _ = await launched(fleet, browser, address)
        await fleet.start_node("n4")
        cells = "document.querySelectorAll('#beside .cell')"
        await tab.until(f"{cells}.length === 2")
        await tab.until("document.querySelector('#beside').textContent.includes('2 standby')")
        await tab.get(f"{cells}[0].focus()")
        await tab.press("ArrowRight")
        await tab.until("document.activeElement.dataset.node === 'n4'")
        assert await tab.get(f"[...{cells}].filter((c) => c.tabIndex === 0).length") == 1

        await fleet.start_node("n5")
        await tab.until(f"{cells}.length === 3")
        assert await tab.get("document.activeElement.dataset.node") == "n4"
        assert tab.complaints == []

    watch(story)


def test_a_page_that_was_refused_tries_again(watch: Watch) -> None:
    """A proxy that answers 503 while its server is replaced ends no page for good."""
    refused = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()
        refused.set()

    async def story(fleet: Fleet, browser: Browser, unused: Address) -> None:
        assert unused
        async with serving(fleet.log, Address("127.0.0.1", 0)) as mine:
            tab, _ = await launched(fleet, browser, mine)
            await tab.get("window.sameDocument = true")
        async with await asyncio.start_server(refuse, mine.host, mine.port, reuse_address=True):
            await asyncio.wait_for(refused.wait(), 20)
        async with serving(fleet.log, mine):
            await tab.until("document.querySelector('#link').textContent === 'live'")
            assert await tab.get("window.sameDocument")

    watch(story)
