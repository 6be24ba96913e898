// Drawing: from values to elements. Text is always set as text: what nodes say is never markup.
"use strict";

const draw = (() => {
  const SMALL_FROM = 512; // slots from which cells carry colour only

  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") made.className = value;
      else if (name in made && typeof value !== "string") made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  function span(ms) {
    const s = Math.max(0, ms) / 1000;
    if (s < 120) return `${s.toFixed(1)} s`;
    if (s < 7200) return `${Math.round(s / 60)} min`;
    return s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} d`;
  }

  function clock(ms) {
    const at = new Date(ms);
    return at.toLocaleTimeString("en-GB") + "." + String(at.getMilliseconds()).padStart(3, "0");
  }

  const number = (value, digits = 1) => (value === null || value === undefined ? "-" : value.toFixed(digits));

  // Coordinates of a slot: of its ranks, the first and the last along each axis.
  function coordinates(job, slot) {
    const axes = Object.entries(job.axes);
    const at = (rank) => {
      const found = [];
      for (const [, size] of axes.slice().reverse()) { found.unshift(rank % size); rank = Math.floor(rank / size); }
      return found;
    };
    const first = at(slot * job.ranks_per_node), last = at((slot + 1) * job.ranks_per_node - 1);
    return axes.map(([name], i) => `${name}=${first[i] === last[i] ? first[i] : `${first[i]}-${last[i]}`}`);
  }

  function cell(label, state, extra = "") {
    return el("button", { type: "button", class: `cell s-${state}${extra}`, role: "gridcell", tabIndex: -1, "aria-label": label, title: label });
  }

  // One row per coordinate of the outermost axis: the grid shows the layout and not a list.
  function grid(job) {
    const names = Object.keys(job.axes);
    const rows = names.length > 1 ? Math.max(1, job.axes[names[0]]) : 1;
    const perRow = Math.ceil(job.slots / rows);
    const made = el("div", { class: "grid", role: "grid", "aria-label": `Slots of ${job.job}: rows are ${rows > 1 ? names[0] : "the job"}, columns ${names.slice(rows > 1 ? 1 : 0).join(", ")}` });
    const cells = [];
    for (let row = 0; row < rows; row++) {
      const line = el("div", { role: "row" }, el("span", { class: "rowname", role: "rowheader" }, rows > 1 ? `${names[0]}=${row}` : names.join(" x ")));
      for (let column = 0; column < perRow && row * perRow + column < job.slots; column++) {
        const slot = row * perRow + column;
        const one = cell(`slot ${slot}`, "joining");
        one.dataset.slot = slot;
        cells.push(one);
        line.append(one);
      }
      made.append(line);
    }
    if (cells.length) cells[0].tabIndex = 0;
    return { element: made, cells, perRow };
  }

  function curve(points, pick, words, digits) {
    const W = 400, H = 84, L = 44, B = 14;
    const shown = points.filter((p) => pick(p) !== null).map((p) => [p[0], pick(p)]);
    const svgns = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(svgns, "svg");
    svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
    svg.setAttribute("role", "img");
    const figure = el("figure", {}, svg, el("figcaption", {}, words));
    if (shown.length < 2) { svg.setAttribute("aria-label", `${words}: no windows yet`); return figure; }
    const xs = shown.map((p) => p[0]), ys = shown.map((p) => p[1]);
    const low = Math.min(...ys), high = Math.max(...ys), from = Math.min(...xs), to = Math.max(...xs);
    const x = (v) => L + ((v - from) / (to - from || 1)) * (W - L - 4);
    const y = (v) => H - B - ((v - low) / (high - low || 1)) * (H - B - 6);
    const add = (tag, attributes, text) => {
      const made = document.createElementNS(svgns, tag);
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      if (text !== undefined) made.textContent = text;
      svg.append(made);
    };
    for (const v of [low, high]) {
      add("line", { class: "grid-line", x1: L, x2: W - 4, y1: y(v), y2: y(v) });
      add("text", { x: L - 5, y: y(v) + 4, "text-anchor": "end" }, v.toFixed(digits));
    }
    add("polyline", { points: shown.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ") });
    svg.setAttribute("aria-label", `${words}: now ${ys[ys.length - 1].toFixed(digits)}, between ${low.toFixed(digits)} and ${high.toFixed(digits)}`);
    return figure;
  }

  return { el, span, clock, number, coordinates, cell, grid, curve, SMALL_FROM };
})();
