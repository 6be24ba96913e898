// The live page: takes in what the control plane says and patches what changed, once per frame.
"use strict";

const { el, span, clock, number } = draw;
const $ = (id) => document.getElementById(id);
const HISTORY_MAX = 400;
const BESIDE_MAX = 400; // cells of one state beside the run

const values = new Map(); // "node/n7", "job/demo", "fleet" -> value
const points = new Map(); // job -> [[at_ms, step_ms, loss], ...]
const views = new Map(); // job -> its card
const slotOf = new Map(); // node -> [job, slot], as drawn
const dirty = new Set();
let lines = [];
let searching = null;
let mayAct = false;
let shown = null; // node in the dialog
let scheduled = false;
let skew = 0; // their clock less ours, ms: durations are of the log's time

const now = () => Date.now() + skew;
const token = () => sessionStorage.getItem("changeover-token") || "";
const nodesOf = (keep) => [...values].filter(([name, value]) => name.startsWith("node/") && keep(value)).map(([, value]) => value);

const holdsSlot = (node) => node.slot >= 0 && node.state !== "lost" && node.state !== "gone";

// --- taking in ---------------------------------------------------------------------------------

function connect() {
  const source = new EventSource("/events");
  source.addEventListener("hello", (message) => {
    mayAct = JSON.parse(message.data).may_act;
    for (const each of document.querySelectorAll(".act")) each.hidden = !mayAct;
  });
  source.addEventListener("all", (message) => {
    values.clear();
    points.clear();
    lines = [];
    dirty.add("everything");
    takeIn(JSON.parse(message.data));
  });
  source.addEventListener("change", (message) => takeIn(JSON.parse(message.data)));
  source.onopen = () => link("live", "good");
  source.onerror = () => {
    link("reconnecting", "bad");
    // A refusal (a proxy whose server is being replaced) ends an event source for good.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 1000);
  };
}

function link(words, kind) {
  $("link").textContent = words;
  $("link").className = `chip ${kind}`;
}

function takeIn(told) {
  for (const [name, value] of Object.entries(told.set)) { values.set(name, value); dirty.add(name); }
  for (const name of told.gone || []) { values.delete(name); dirty.add(name); }
  for (const [job, more] of Object.entries(told.points || {})) {
    const kept = (points.get(job) || []).concat(more).slice(-600);
    points.set(job, kept);
    dirty.add(`points/${job}`);
  }
  if (told.lines.length) {
    lines = lines.concat(told.lines).slice(-HISTORY_MAX);
    const last = told.lines[told.lines.length - 1];
    if (Math.abs(last.at_ms - now()) > 3000 && last.at_ms > now()) skew = last.at_ms - Date.now();
    announce(told.lines);
    dirty.add("history");
  }
  if (!scheduled) { scheduled = true; requestAnimationFrame(render); }
}

function announce(fresh) {
  const loud = ["NodeLost", "VerdictIssued", "TransitionPlanned", "TransitionFinished", "TransitionAborted", "LeaderElected", "JobFinished"];
  const said = fresh.filter((line) => loud.includes(line.type)).slice(-3);
  if (said.length) $("news").textContent = said.map((line) => `${line.type}: ${line.words}`).join(". ");
}

// --- drawing -----------------------------------------------------------------------------------

function render() {
  scheduled = false;
  const all = dirty.has("everything");
  const names = all ? [...values.keys()] : [...dirty];
  const history = dirty.has("history") || all;
  const redrawn = new Set([...dirty].filter((name) => name.startsWith("points/")).map((name) => name.slice(7)));
  dirty.clear();
  drawFleet();
  dropJobs();
  for (const [name, value] of values) if (name.startsWith("job/")) drawJob(value, all || names.includes(name), all || redrawn.has(value.job));
  const touched = names.filter((name) => name.startsWith("node/"));
  for (const name of touched) placeNode(values.get(name));
  if (touched.length || all) { keepFocus($("beside"), drawBeside); drawWarmups(); }
  if (touched.length || all || names.some((name) => name.startsWith("sweep/"))) keepFocus($("verdicts"), drawHealth);
  if (history && searching === null) drawHistory(lines.slice().reverse());
  if (shown !== null && touched.includes(`node/${shown}`)) drawNode(shown);
}

function drawFleet() {
  const fleet = values.get("fleet");
  if (!fleet) return;
  $("fleet").textContent = fleet.fleet;
  document.title = `${fleet.fleet}: Changeover`;
  $("leader").textContent = (fleet.leader ? `led by ${fleet.leader} (term ${fleet.term})` : "no controller leads: facts wait, training goes on") + `, position ${fleet.position}`;
  $("counts").replaceChildren(...Object.entries(fleet.counts).map(([state, count]) => el("li", {}, el("i", { class: `s-${state}` }), `${count} ${state}`)));
  const alerts = [];
  if (fleet.paused_by) alerts.push(`Paused by ${fleet.paused_by}: verdicts are not acted upon.`);
  if (fleet.shadow) alerts.push("Shadow mode: what would be done about verdicts is recorded, not done.");
  if (fleet.newer_events) alerts.push(`${fleet.newer_events} events of a newer release: upgrade this one.`);
  const text = alerts.join(" ");
  if ($("alerts").textContent !== text) $("alerts").textContent = text;
  $("act-pause").textContent = fleet.paused_by ? "Resume" : "Pause";
}

// Jobs that are no more, as after a change of the fleet behind an address; and that there is none.
function dropJobs() {
  for (const [job, view] of views) if (!values.has(`job/${job}`)) { view.card.remove(); views.delete(job); }
  const none = ![...values.keys()].some((name) => name.startsWith("job/"));
  if (none !== ($("no-job") !== null)) none ? $("jobs").append(el("p", { id: "no-job", class: "soft" }, "No job is declared yet.")) : $("no-job").remove();
}

// What is drawn anew may hold the focus: whoever stood on a node's button stands there again.
function keepFocus(box, redraw) {
  const held = box.contains(document.activeElement) ? document.activeElement.dataset.node : undefined;
  redraw();
  const again = held && [...box.querySelectorAll("button")].find((one) => one.dataset.node === held);
  if (again) { again.tabIndex = 0; again.focus({ preventScroll: true }); }
}

function drawJob(job, changed, curves) {
  let view = views.get(job.job);
  if (view && (view.slots !== job.slots)) { view.card.remove(); view = undefined; }
  if (!view) {
    const made = draw.grid(job);
    view = { slots: job.slots, cells: made.cells, perRow: made.perRow, head: el("h2"), said: el("p", { class: "soft" }), pending: el("div"), warm: el("div"), curves: el("div", { class: "curves" }) };
    view.card = el("article", { class: `card${job.slots >= draw.SMALL_FROM ? " small" : ""}`, "aria-label": `Job ${job.job}` }, view.head, view.said, view.pending, made.element, view.warm, view.curves);
    made.element.addEventListener("keydown", (key) => walk(view, key));
    made.element.addEventListener("click", (click) => { const node = click.target.dataset.node; if (node) openNode(node); });
    views.set(job.job, view);
    $("jobs").append(view.card);
    changed = curves = true;
    for (const node of nodesOf((value) => value.job === job.job && holdsSlot(value))) { slotOf.delete(node.node); placeNode(node); }
  }
  if (changed) {
    const axes = Object.entries(job.axes).map(([name, size]) => `${name}=${size}`).join(" ");
    view.head.textContent = `${job.job}: ${job.state}`;
    const step = job.step === null ? "" : `, step ${job.step}${job.steps ? ` of ${job.steps}` : ""}`;
    view.said.textContent = `${axes}, epoch ${job.epoch}${step}${job.loss === null ? "" : `, loss ${job.loss.toFixed(4)}`}${job.stalled ? `; stalled: ${job.stalled}` : ""}`;
    for (const slot of job.vacant) paintSlot(view, job, slot, null, " vacant");
    view.awaited = new Set(job.pending ? job.pending.awaited : []);
    for (const one of view.cells) one.classList.toggle("awaited", view.awaited.has(one.dataset.node));
  }
  drawPending(view, job);
  if (curves) {
    const mine = points.get(job.job) || [];
    view.curves.replaceChildren(draw.curve(mine, (p) => p[1], "step time, ms", 1), draw.curve(mine, (p) => p[2], "loss", 3));
  }
}

function drawPending(view, job) {
  const p = job.pending;
  if (!p) { if (view.pending.childElementCount) view.pending.replaceChildren(); return; }
  const words = `transition ${p.transition} (${p.motive}) is ${p.phase}: ${span(now() - p.from_ms)} of ${span(p.until_ms - p.from_ms)}, ${p.answered} of ${p.members} answered`;
  const changes = p.changes.map((c) => `slot ${c.slot}: ${c.joiner}${c.leaver ? ` for ${c.leaver}` : ""}`).join(", ");
  const phases = ["preparing", "committed"].map((phase) => el("li", { "aria-current": String(phase === p.phase) }, phase === p.phase ? el("b", {}, phase) : phase));
  view.pending.replaceChildren(el("div", { class: "pending" }, el("p", {}, words), el("ol", { class: "soft" }, ...phases),
    el("p", {}, p.awaited.length ? `waiting for ${p.awaited.join(", ")}` : "waiting for nobody"), el("p", { class: "soft" }, `${changes}; ${p.reason}`),
    ...p.refused.map((r) => el("p", { class: "bad" }, `${r.node} refused: ${r.reason}`))));
}

function paintSlot(view, job, slot, node, extra) {
  const one = view.cells[slot];
  if (!one) return;
  const where = draw.coordinates(job, slot).join(" ");
  const label = node ? `slot ${slot}, ${where}: ${node.node}, ${node.state}${node.verdict ? `, ${node.verdict.verdict}` : ""}` : `slot ${slot}, ${where}: vacant`;
  one.className = `cell ${node ? `s-${node.state}` : ""}${extra}${node && view.awaited && view.awaited.has(node.node) ? " awaited" : ""}`;
  one.setAttribute("aria-label", label);
  one.title = label;
  one.textContent = node ? node.node : "-";
  one.dataset.node = node ? node.node : "";
}

function placeNode(node) {
  if (!node) return;
  const before = slotOf.get(node.node);
  const holds = holdsSlot(node);
  if (before && (!holds || before[0] !== node.job || before[1] !== node.slot)) {
    const view = views.get(before[0]), job = values.get(`job/${before[0]}`);
    if (view && job && view.cells[before[1]].dataset.node === node.node) paintSlot(view, job, before[1], null, " vacant");
    slotOf.delete(node.node);
  }
  const view = views.get(node.job), job = values.get(`job/${node.job}`);
  if (!view || !job || !holds) return;
  slotOf.set(node.node, [node.job, node.slot]);
  const judged = node.verdict && node.verdict.verdict !== "healthy" ? " judged" : "";
  paintSlot(view, job, node.slot, node, judged);
}

function drawBeside() {
  const groups = new Map();
  for (const node of nodesOf((value) => !holdsSlot(value) && value.state !== "gone")) groups.set(node.state, (groups.get(node.state) || []).concat(node));
  $("beside").replaceChildren(...[...groups].sort().map(([state, nodes]) => {
    const cells = nodes.sort((a, b) => a.node.localeCompare(b.node, "en", { numeric: true })).slice(0, BESIDE_MAX).map((node) => {
      const one = draw.cell(`${node.node}: ${state}${node.wanted_out ? `, ${node.wanted_out}` : ""}${node.kept_out ? `, ${node.kept_out}` : ""}`, state, node.verdict && node.verdict.verdict !== "healthy" ? " judged" : "");
      one.removeAttribute("role");
      one.textContent = one.dataset.node = node.node;
      one.addEventListener("click", () => openNode(node.node));
      return one;
    });
    cells[0].tabIndex = 0;
    const more = nodes.length > BESIDE_MAX ? el("span", { class: "soft" }, `and ${nodes.length - BESIDE_MAX} more`) : null;
    const group = el("div", { class: "group", role: "group", "aria-label": `${nodes.length} ${state}` }, el("b", {}, `${nodes.length} ${state}`), ...cells, more);
    group.addEventListener("keydown", (key) => walk({ cells, perRow: 10 }, key));
    return group;
  }));
  if (!groups.size) $("beside").replaceChildren(el("p", { class: "soft" }, "nobody: a loss would have to wait for a machine"));
}

function drawWarmups() {
  const counts = new Map();
  for (const node of nodesOf((value) => !["lost", "gone"].includes(value.state))) for (const [job, role, warmth] of node.warm) {
    const key = `${job}\n${role}`;
    const mine = counts.get(key) || {};
    mine[warmth] = (mine[warmth] || 0) + 1;
    counts.set(key, mine);
  }
  for (const [job, view] of views) {
    const rows = [...counts].filter(([key]) => key.startsWith(`${job}\n`)).sort().map(([key, found]) =>
      el("tr", {}, el("th", { scope: "row" }, key.split("\n")[1]), ...["warm", "warming", "stale", "failed"].map((name) => el("td", { class: "num" }, String(found[name] || 0)))));
    view.warm.replaceChildren(...(rows.length ? [el("table", { class: "warmup" }, el("caption", { class: "sr" }, `Warm-up of ${job} per role`),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "role"), ...["warm", "warming", "stale", "failed"].map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, ...rows))] : []));
  }
}

function drawHealth() {
  const judged = nodesOf((value) => value.verdict !== null);
  $("verdicts").hidden = judged.length === 0;
  $("verdicts").tBodies[0].replaceChildren(...judged.slice(0, 200).map((node) => {
    const v = node.verdict;
    const evidence = v.indicators.map((i) => `${i.metric} ${number(i.value)} against ${number(i.peers)} (${i.windows} windows)`).join("; ");
    return el("tr", {}, el("td", {}, nodeButton(node.node)), el("td", { class: v.verdict === "healthy" ? "" : "bad" }, v.verdict), el("td", {}, v.reason), el("td", {}, evidence || "-"), el("td", {}, v.expires_ms ? `in ${span(v.expires_ms - now())}` : "-"));
  }));
  $("sweeps").replaceChildren(...[...values].filter(([name]) => name.startsWith("sweep/")).map(([name, s]) =>
    el("li", {}, `sweep ${name.slice(6)} of ${s.node}${s.partner ? ` with ${s.partner}` : ""}: done ${s.done.join(", ") || "nothing"}, open ${s.open.join(", ") || "nothing"}; ${s.reason}`)));
}

const nodeButton = (name) => { const made = el("button", { type: "button" }, name); made.dataset.node = name; made.addEventListener("click", () => openNode(name)); return made; };

function lineRow(line) {
  return el("tr", {}, el("td", { class: "num" }, String(line.position)), el("td", {}, clock(line.at_ms)), el("td", {}, line.type), el("td", {}, line.words || "-"));
}

function drawHistory(found) {
  const body = $("history").tBodies[0];
  const top = body.rows[0] ? Number(body.rows[0].cells[0].textContent) : -1;
  if (searching === null && found.length && top > 0) { // live: put what is new on top
    const fresh = found.filter((line) => line.position > top);
    if (fresh.length < found.length) {
      body.prepend(...fresh.map(lineRow));
      while (body.rows.length > HISTORY_MAX) body.deleteRow(-1);
      return;
    }
  }
  body.replaceChildren(...found.map(lineRow));
}

// --- keys, dialogs, acts -----------------------------------------------------------------------

function walk(view, key) {
  const at = view.cells.indexOf(document.activeElement);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + view.perRow, ArrowUp: at - view.perRow, Home: 0, End: view.cells.length - 1 }[key.key];
  if (at < 0 || to === undefined || !view.cells[to]) return;
  key.preventDefault();
  view.cells[at].tabIndex = -1;
  view.cells[to].tabIndex = 0;
  view.cells[to].focus();
}

async function openNode(name) {
  shown = name;
  drawNode(name);
  $("node-story").replaceChildren(el("li", {}, "reading the log"));
  if (!$("node").open) $("node").showModal();
  const { lines: story, error } = await ask(`/api/explain?subject=${encodeURIComponent(name)}`);
  if (shown !== name) return;
  $("node-story").replaceChildren(...(error ? [el("li", { class: "bad" }, error)] : story.slice(-200).map((line) => el("li", {}, `${line.position} ${clock(line.at_ms)} ${line.type} ${line.words}`))));
}

function drawNode(name) {
  const node = values.get(`node/${name}`);
  if (!node) return;
  $("node-h").textContent = `${node.node}, incarnation ${node.incarnation}`;
  const facts = { state: `${node.state} for ${span(now() - node.since_ms)}`, host: node.host, job: node.job ? `${node.job}${node.slot >= 0 ? `, slot ${node.slot}` : ""}` : "-",
    "warm-up": node.warm.map((w) => `${w[1]} of ${w[0]}: ${w[2]}${w[3] ? ` (${w[3]})` : ""}`).join("; ") || "-", step: node.step ?? "-",
    "step, work, wait, data (ms)": [node.step_ms, node.work_ms, node.wait_ms, node.data_ms].map((v) => number(v)).join(", "),
    verdict: node.verdict ? `${node.verdict.verdict}: ${node.verdict.reason}` : "-", wanted: node.wanted_out || "-", "kept out": node.kept_out || "-" };
  $("node-facts").replaceChildren(...Object.entries(facts).flatMap(([term, words]) => [el("dt", {}, term), el("dd", {}, String(words))]));
  if ($("node-acts").dataset.node !== name) {
    $("node-acts").dataset.node = name;
    $("node-acts").replaceChildren(...["drain", "switchover", "quarantine", "release", "sweep"].map((act) => {
      const made = el("button", { type: "button" }, act);
      made.addEventListener("click", () => askFirst(act, name));
      return made;
    }));
  }
  $("node-acts").hidden = !mayAct;
}

const HARM = {
  drain: "It leaves the run at the next step boundary; a standby takes its slot. Release gives it back.",
  switchover: "Another node takes its slot at the next step boundary; it stays in the pool.",
  quarantine: "It leaves the run and is kept out until a sweep, or you, clear it.",
  release: "It is given back to the pool; out of quarantine it is swept first.",
  sweep: "It is measured beside the run; it must hold no slot.",
  pause: "Verdicts are no longer acted upon; losses are still repaired.",
  resume: "Verdicts are acted upon again.",
};

function askFirst(act, node = "") {
  $("ask-h").textContent = `${act} ${node}`.trim() + "?";
  $("ask-words").textContent = HARM[act];
  $("ask-error").textContent = "";
  $("ask-by").value = localStorage.getItem("changeover-by") || "";
  $("ask-comment").value = $("ask-to").value = "";
  $("ask-force").checked = false;
  $("ask-to-label").hidden = act !== "switchover";
  $("ask-force-label").hidden = act !== "release";
  $("ask").dataset.act = act;
  $("ask").dataset.node = node;
  $("ask").showModal();
}

async function ask(path, options = {}) {
  try {
    const answer = await fetch(path, options);
    const found = await answer.json();
    return answer.ok ? found : { error: found.error || `refused (${answer.status})`, status: answer.status };
  } catch (error) {
    return { error: "the control plane does not answer" };
  }
}

async function perform(submit) {
  if (submit.submitter && submit.submitter.value === "cancel") return;
  submit.preventDefault();
  if (!token()) { askToken(); if (!token()) return; }
  const { act, node } = $("ask").dataset;
  const by = $("ask-by").value;
  localStorage.setItem("changeover-by", by);
  const wish = { by, node, to: $("ask-to").value, comment: $("ask-comment").value, force: $("ask-force").checked };
  const headers = { "content-type": "application/json", authorization: `Bearer ${token()}` };
  const done = await ask(`/api/acts/${act}`, { method: "POST", headers, body: JSON.stringify(wish) });
  if (done.status === 401) sessionStorage.removeItem("changeover-token");
  if (done.error) { $("ask-error").textContent = done.error; return; }
  $("news").textContent = done.position ? `${act} ${node} is at position ${done.position} of the log` : `${act} ${node} is noted; it waits for a controller`;
  $("ask").close();
}

function askToken() {
  const given = window.prompt("Token for acting (from the controller's token file)", "");
  if (given) sessionStorage.setItem("changeover-token", given.trim());
}

async function find(before) {
  const words = $("q").value.trim();
  searching = { words, before };
  $("live").hidden = false;
  const asked = new URLSearchParams({ q: words, ...(before ? { before } : {}) });
  const found = await ask(`/api/history?${asked}`);
  if (found.error) { $("news").textContent = found.error; return; }
  searching = { words, before: found.before };
  drawHistory(found.lines);
  $("news").textContent = `${found.lines.length} events found`;
}

function begin() {
  const theme = localStorage.getItem("changeover-theme");
  if (theme) document.documentElement.dataset.theme = theme;
  $("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("changeover-theme", document.documentElement.dataset.theme);
  });
  $("search").addEventListener("submit", (submit) => { submit.preventDefault(); find(0); });
  $("older").addEventListener("click", () => find(searching ? searching.before : lines.length ? lines[0].position : 0));
  $("live").addEventListener("click", () => { searching = null; $("live").hidden = true; $("q").value = ""; $("history").tBodies[0].replaceChildren(); drawHistory(lines.slice().reverse()); });
  $("node").addEventListener("close", () => { shown = null; });
  $("ask-form").addEventListener("submit", perform);
  $("token-set").addEventListener("click", askToken);
  $("act-pause").addEventListener("click", () => askFirst(values.get("fleet")?.paused_by ? "resume" : "pause"));
  setInterval(() => { for (const [name, value] of values) if (name.startsWith("job/") && value.pending && views.has(value.job)) drawPending(views.get(value.job), value); }, 500);
  connect();
}

begin();
