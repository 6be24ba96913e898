"""The live page in a real Chromium: an incident is followed to its end, and an act is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controlplane.term import Term
from controlplane.web.serving import Address, serving
from statemachine import events as e
from statemachine.ids import Epoch, Incarnation, NodeId, Role, Slot
from statemachine.vitals import STEP_MS, Metric, Vitals, encode_vitals
from tests.integration.web.chromium import Browser, Tab
from tests.integration.web.conftest import TOKEN, Watch
from tests.simulation.agents import JOB
from tests.simulation.fleet import Fleet

pytestmark = [pytest.mark.etcd, pytest.mark.slow, pytest.mark.timeout(120)]

CELLS = "[...document.querySelectorAll('#jobs .cell')].map(c => c.dataset.node).join()"


async def launched(fleet: Fleet, browser: Browser, address: Address) -> tuple[Tab, Term]:
    """A job of three that runs, a standby beside it, and a page that shows both."""
    term = await fleet.start_controller("c0")
    for name in ("n0", "n1", "n2", "n3"):
        await fleet.start_node(name)
    await fleet.declare(slots=3, standbys=1)
    await fleet.until(lambda s: JOB in s.jobs and s.jobs[JOB].launched, "the launch")
    tab = await browser.open(str(address))
    await tab.until("document.querySelectorAll('#jobs .cell').length === 3")
    await tab.until("document.querySelector('#jobs h2')?.textContent === 'job: running'")
    await fleet.until(lambda s: str(s.nodes[NodeId("n3")].state) == "standby", "the rehearsal")
    await tab.until("document.querySelector('#beside').textContent.includes('1 standby')")
    return tab, term


def test_an_incident_is_followed_to_its_end_and_a_change_of_controller_survived(
    watch: Watch,
) -> None:
    """A node dies: who left, who is awaited, who came; then another controller leads, no reload."""

    async def story(fleet: Fleet, browser: Browser, address: Address) -> None:
        tab, _ = await launched(fleet, browser, address)
        await tab.get("window.sameDocument = true")
        assert await tab.get(CELLS) == "n0,n1,n2"

        fleet.nodes["n3"].worker.mute = True
        await fleet.kill_node("n1", seen_by=["n0", "n2"])
        await tab.until(
            "document.querySelector('.pending')?.textContent.includes('waiting for n3')"
        )
        assert "unplanned" in await tab.get("document.querySelector('.pending').textContent")
        fleet.nodes["n3"].unmute()
        await tab.until(f"{CELLS} === 'n0,n3,n2'")
        await tab.until("document.querySelector('.pending') === null")
        await tab.until("document.querySelector('#jobs h2').textContent === 'job: running'")
        await tab.until("document.querySelector('#history').textContent.includes('NodeLost')")
        assert "epoch 2" in await tab.get("document.querySelector('#jobs .soft').textContent")

        fleet.kill_controller("c0")
        await fleet.start_controller("c1")
        await tab.until("document.querySelector('#leader').textContent.includes('led by c1')")
        assert await tab.get("window.sameDocument"), "the page was loaded anew"
        assert tab.complaints == []
        if shots := os.environ.get("CHANGEOVER_SHOTS"):
            await tab.shot(Path(shots) / "live-page.png")

    watch(story)


def test_acting_asks_first_and_needs_the_token(watch: Watch) -> None:
    """Drain: a question, a name, a token; with a wrong one nothing happens."""

    async def story(fleet: Fleet, browser: Browser, address: Address) -> None:
        tab, _ = await launched(fleet, browser, address)
        await tab.get("document.querySelector('#jobs .cell[data-node=n0]').click()")
        await tab.until("document.querySelector('#node').open")
        await tab.until("document.querySelector('#node-story').textContent.includes('NodeJoined')")
        await tab.get("document.querySelector('#node-acts button').click()")
        await tab.until("document.querySelector('#ask').open")
        assert await tab.get("document.querySelector('#ask-h').textContent") == "drain n0?"

        await tab.get("sessionStorage.setItem('changeover-token', 'wrong')")
        await tab.get("document.querySelector('#ask-by').value = 'ada'")
        await tab.get("document.querySelector('#ask-comment').value = 'new fan'")
        await tab.get("document.querySelector('#ask-go').click()")
        await tab.until("document.querySelector('#ask-error').textContent.includes('token')")
        assert not fleet.said(e.DrainRequested)

        await tab.get(f"sessionStorage.setItem('changeover-token', {TOKEN!r})")
        await tab.get("document.querySelector('#ask-go').click()")
        await tab.until("!document.querySelector('#ask').open")
        await fleet.until(lambda s: str(s.nodes[NodeId("n0")].state) == "drained", "the drain")
        assert fleet.said(e.DrainRequested)[0].by == "ada"
        assert fleet.said(e.DrainRequested)[0].comment == "new fan"
        await tab.until(f"{CELLS} === 'n3,n1,n2'")

    watch(story)


def test_it_is_usable_by_keyboard_and_in_the_dark(watch: Watch) -> None:
    """One cell is in the tab order, arrows walk the grid, Enter opens; every control has a name."""

    async def story(fleet: Fleet, browser: Browser, address: Address) -> None:
        await launched(fleet, browser, address)
        tab = await browser.open(str(address), dark=True)
        await tab.until("document.querySelectorAll('#jobs .cell').length === 3")
        await tab.until(f"{CELLS} === 'n0,n1,n2'")
        in_order = "document.querySelectorAll('#jobs .cell[tabindex=\"0\"]').length"
        assert await tab.get(in_order) == 1

        await tab.get("document.querySelector('#jobs .cell').focus()")
        await tab.press("ArrowRight")
        await tab.until("document.activeElement.dataset.node === 'n1'")
        assert await tab.get(in_order) == 1
        label = await tab.get("document.activeElement.getAttribute('aria-label')")
        assert label == "slot 1, dp=1: n1, active"
        await tab.press("End")
        await tab.until("document.activeElement.dataset.node === 'n2'")

        tree = (await tab.do("Accessibility.getFullAXTree"))["nodes"]
        nameless = [
            node["role"]["value"]
            for node in tree
            if not node.get("ignored")
            and node["role"]["value"] in ("button", "textbox", "searchbox", "grid", "gridcell")
            and not node.get("name", {}).get("value")
        ]
        assert nameless == []
        background = await tab.get("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(19, 20, 23)"
        assert tab.complaints == []

    watch(story)


def test_step_time_loss_and_verdicts_appear_as_they_come(watch: Watch) -> None:
    """Windows become curves; a verdict comes with its evidence, and its cell is marked."""

    async def story(fleet: Fleet, browser: Browser, address: Address) -> None:
        tab, term = await launched(fleet, browser, address)
        for step in range(1, 4):
            for name in ("n0", "n1", "n2"):
                node = fleet.nodes[name]
                vitals = window(name, node.session.incarnation, step)
                await node.session.put_vitals(encode_vitals(vitals))
            said = "document.querySelector('#jobs .soft').textContent"
            await tab.until(f"{said}.includes('step {step},')")
        await tab.until("document.querySelectorAll('.curves polyline').length === 2")
        label = await tab.get("document.querySelector('.curves svg').getAttribute('aria-label')")
        assert label.startswith("step time, ms: now 90.0")

        verdict = e.VerdictIssued(
            node=NodeId("n2"),
            incarnation=fleet.incarnation("n2"),
            verdict=e.Verdict.SUSPECT,
            reason="<img src=x onerror=alert(1)> 1.2x its peers",
            job=JOB,
            indicators=(
                e.Indicator(
                    metric="work_ms", value=120, peers_median=100, score=4, windows=3, peers=2
                ),
            ),
            detector="test",
        )
        term.reconciler.state_events([verdict])
        shown = "document.querySelector('#verdicts').textContent"
        await tab.until(f"{shown}.includes('1.2x its peers')")
        row = await tab.get("document.querySelector('#verdicts tbody').textContent")
        assert "work_ms 120.0 against 100.0 (3 windows)" in row
        assert await tab.get("document.querySelectorAll('#verdicts img').length") == 0
        await tab.until("document.querySelector('#jobs .cell[data-node=n2]').matches('.judged')")
        assert tab.complaints == []

    watch(story)


def window(node: str, incarnation: Incarnation, step: int) -> Vitals:
    """What a node measured."""
    return Vitals(
        node=NodeId(node),
        incarnation=incarnation,
        job=JOB,
        slot=Slot(int(node[1])),
        role=Role("only"),
        epoch=Epoch(1),
        window=step,
        started_at_ms=step * 1000,
        ended_at_ms=step * 1000 + 900,
        last_step=step,
        loss=3.0 / step,
        metrics={STEP_MS: Metric(count=10, mean=90.0, p50=90.0, p95=99.0)},
    )


def test_a_page_whose_server_ends_comes_back_by_itself(watch: Watch) -> None:
    """It says that it reconnects; once somebody serves again it shows what happened meanwhile."""

    async def story(fleet: Fleet, browser: Browser, unused: Address) -> None:
        assert unused
        async with serving(fleet.log, Address("127.0.0.1", 0)) as mine:
            tab, _ = await launched(fleet, browser, mine)
            await tab.get("window.sameDocument = true")
        await tab.until("document.querySelector('#link').textContent === 'reconnecting'")
        await fleet.act(e.DecisionsPaused(by="ada"))
        async with serving(fleet.log, mine):
            await tab.until("document.querySelector('#link').textContent === 'live'")
            await tab.until("document.querySelector('#alerts').textContent.includes('by ada')")
            assert await tab.get("window.sameDocument")
            assert await tab.get(CELLS) == "n0,n1,n2"

    watch(story)
