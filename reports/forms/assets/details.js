// The details of a call, of a missing one, or of a mark, beside the lanes.

class Details {
  /** @param {HTMLElement} panel @param {Run} run */
  constructor(panel, run) {
    this.panel = panel;
    this.run = run;
    this.body = panel.querySelector(".details-body");
    panel.querySelector("button").addEventListener("click", () => this.close());
    /** Called when it opens or closes. */
    this.onToggle = () => {};
  }

  get isOpen() {
    return !this.panel.hidden;
  }

  close() {
    if (!this.isOpen) return;
    this.panel.hidden = true;
    this.onToggle();
  }

  open(title, content) {
    this.panel.querySelector("h3").textContent = title;
    this.body.replaceChildren(...content);
    const wasOpen = this.isOpen;
    this.panel.hidden = false;
    if (!wasOpen) this.onToggle();
  }

  /** @param {number} cell */
  showCell(cell) {
    const { run } = this;
    const call = run.callAt(cell);
    const who = laneName(run.lanes[run.cellLane[cell]]);
    const title = `${who}: ${callName(run, call)}${run.isMissing(cell) ? " is missing" : ""}`;
    this.open(title, [listOf(this.cellRows(cell, call)), ...this.source(call, cell)]);
  }

  /** @param {number} cell @param {number} call */
  cellRows(cell, call) {
    const { run } = this;
    const isMissing = run.isMissing(cell);
    const instead = isMissing ? insteadRows(run, run.cellLane[cell]) : [];
    const rows = [["state", stateOf(run, cell)], ...instead, ...callRows(run, call)];
    if (!isMissing) {
      const event = run.cellEvent[cell];
      rows.push(["issued", `in event ${run.numberOf(event)}, after ${run.eventStep[event]} choices${atTime(run, event)}`]);
    }
    return [...rows, ...slotRows(run, cell)].filter(([, text]) => text !== "");
  }

  /** The ranks that share a lane. @param {number} lane */
  showRanks(lane) {
    const { ranks, rank, end, text } = this.run.lanes[lane];
    const rows = [
      ["ranks", spansText(ranks)],
      ["same", `all ${spansCount(ranks).toLocaleString("en")} made the same calls; events are those of rank ${rank}`],
      ["end", [END_WORDS[end], textAt(text)].filter((part) => part).join(" ")],
    ];
    this.open(ranksText(ranks.slice(0, 3)) + (ranks.length > 3 ? ", \u2026" : ""), [listOf(rows.filter(([, each]) => each))]);
  }

  /** @param {Mark} mark */
  showMark(mark) {
    const { run } = this;
    const rows = mark.events.map((event) => [`event ${run.numberOf(event)}`, eventLine(run, event) + atTime(run, event)]);
    this.open(laneName(run.lanes[mark.lane]), [listOf(rows)]);
  }

  /** The lines around the call, and around what called its file. A missing one has none of its own. */
  source(call, cell) {
    const { sites, calls } = this.run;
    if (call < 0 || calls.site[call] === null) return [];
    const caller = calls.caller[call];
    return [
      ...sourceOf(sites[calls.site[call]], this.run.isMissing(cell) ? "the others called it at " : ""),
      ...(caller === null ? [] : sourceOf(sites[caller], "called from ")),
    ];
  }
}

/** @param {string} words that lead it */
function sourceOf(site, words) {
  const place = html("bdi", {}, `${site.file}:${site.line}`);
  const location = site.link ? html("a", { href: site.link }, place) : place;
  const where = html("p", { class: "where" }, words, location, " in ", html("bdi", {}, site.function));
  const lines = site.source.map((text, offset) => sourceLine(site.first + offset, text, site.line));
  return lines.length
    ? [where, html("pre", { class: "source", tabindex: "0", "aria-label": "source" }, ...lines)]
    : [where];
}

function sourceLine(number, text, marked) {
  const isMarked = number === marked;
  const sign = isMarked ? "\u25b6" : " ";
  const line = html(
    "span",
    { class: isMarked ? "line marked" : "line" },
    `${sign}${String(number).padStart(5)}  `,
    html("bdi", {}, text),
    "\n",
  );
  if (isMarked) line.setAttribute("aria-current", "true");
  return line;
}

/** @param {Run} run @param {number} call @returns {[string, string][]} */
function callRows(run, call) {
  if (call < 0) return [];
  const { calls } = run;
  const peer = calls.peer[call];
  return [
    ["operation", run.textOf(call, "operation")],
    ["group", run.textOf(call, "group")],
    ["sequence", `#${calls.sequence[call]}`],
    ["signature", run.textOf(call, "signature")],
    ["message", peer === null ? "" : messageText(run, call, peer)],
    ["origin", run.textOf(call, "origin") || "the program itself"],
    ["bucket", calls.bucket[call] === null ? "" : String(calls.bucket[call])],
    ["parameters", calls.parameters[call].map(textAt).join(", ")],
    ["shadow", calls.shadow[call] ? "made by join() on a joined rank, to answer the others" : ""],
  ];
}

function messageText(run, call, peer) {
  const direction = run.textOf(call, "operation") === "recv" ? "from" : "to";
  return `${direction} ${peer < 0 ? "any rank" : `rank ${peer}`}, tag ${run.calls.tag[call]}`;
}

/** Rows on where a rank is that never made a call. @param {Run} run @param {number} lane @returns {[string, string][]} */
function insteadRows(run, lane) {
  const { end, text } = run.lanes[lane];
  const words = { waiting: "waits forever: ", raised: "raised " };
  const last = run.lastEvent(lane, (event) => run.kinds[event] === "i");
  const over = run.lastEvent(lane, (event) => "rx".includes(run.kinds[event]));
  const what = end in words ? `${words[end]}${textAt(text)}` : END_WORDS[end];
  return [
    ["instead", what + (what && over >= 0 ? `, in event ${run.numberOf(over)}` : "")],
    ["last call", last < 0 ? "none" : `${callWithLine(run, run.eventCall[last])}, in event ${run.numberOf(last)}`],
  ];
}

/** Rows on the ranks of a slot, and on those that are missing. @param {Run} run @param {number} cell @returns {[string, string][]} */
function slotRows(run, cell) {
  const slot = run.cellSlot[cell];
  const match = run.matchNumber(slot);
  const lane = run.lanes[run.cellLane[cell]];
  const isAlone = !run.isMissing(cell) && spansCount(lane.ranks) === 1;
  const spans = isAlone ? without(run.issuers(slot), lane.rank) : run.issuers(slot);
  const missing = run.slots.missing[slot];
  const state = run.slots.state[slot];
  const met = state === "m" ? "met" : "beside it";
  return [
    ["matched", match === 0 ? "no" : `in event ${match}`],
    [met, spans.length ? ranksText(spans) : ""],
    ["waits for", missing && !run.isMissing(cell) ? ranksText(missing) : ""],
    ["differs", state === "x" ? differences(run, slot) : ""],
  ];
}

/** @param {number[][]} spans @param {number} rank @returns {number[][]} */
function without(spans, rank) {
  return spans.flatMap(([first, last]) => {
    const isIn = first <= rank && rank <= last;
    const parts = isIn ? [[first, rank - 1], [rank + 1, last]] : [[first, last]];
    return parts.filter(([from, to]) => from <= to);
  });
}

/** Spans in their order, those that touch put together. @param {number[][]} spans @returns {number[][]} */
function joined(spans) {
  const found = [];
  for (const [first, last] of [...spans].sort((one, other) => one[0] - other[0])) {
    const before = found.at(-1);
    if (before && before[1] >= first - 1) before[1] = Math.max(last, before[1]);
    else found.push([first, last]);
  }
  return found;
}

/** Who called what in a slot whose calls differ. */
function differences(run, slot) {
  const made = run.bySlot[slot].filter((cell) => !run.isMissing(cell));
  const words = new Map();
  for (const cell of made) {
    const call = run.callAt(cell);
    const what = [run.textOf(call, "operation"), run.textOf(call, "signature"), run.textOf(call, "origin")]
      .filter((part) => part)
      .join(" ");
    words.set(what, [...(words.get(what) ?? []), ...run.lanes[run.cellLane[cell]].ranks]);
  }
  const lines = [...words].map(([what, spans]) => `${ranksText(joined(spans))}: ${what}`);
  const shown = [...words.values()].flat();
  const rest = spansCount(run.issuers(slot)) - spansCount(shown);
  return [...lines, ...(rest > 0 ? [`${rest} more ${rest === 1 ? "rank is" : "ranks are"} not shown`] : [])].join("\n");
}

function atTime(run, event) {
  const time = run.timeOf(event);
  return time ? `, at ${Number(time.toPrecision(6))} s` : "";
}

/** @param {string[][]} rows */
function listOf(rows) {
  const list = html("dl");
  for (const [name, text] of rows) list.append(html("dt", {}, name), html("dd", {}, html("bdi", {}, text)));
  return list;
}
