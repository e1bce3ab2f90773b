// Words for what is drawn.

const END_WORDS = {
  returned: "returned",
  raised: "raised",
  waiting: "waits",
  stopped: "stopped",
  unknown: "",
};
const END_SIGNS = { returned: "\u2713", raised: "\u2717", waiting: "\u2026", stopped: "\u25a0", unknown: "" };

/** "0-2, 5". @param {number[][]} spans */
function spansText(spans) {
  return spans.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");
}

/** "rank 3", or "ranks 0-2, 5". @param {number[][]} spans */
function ranksText(spans) {
  return `${spansCount(spans) === 1 ? "rank" : "ranks"} ${spansText(spans)}`;
}

/** @param {number[][]} spans */
function spansCount(spans) {
  return spans.reduce((total, [first, last]) => total + last - first + 1, 0);
}

/** "rank 3", "rank 3 (dp 1, tp 1)" in a device mesh, or "ranks 0-511, 513-1023 · 1,023 alike". @param {Lane} lane */
function laneName(lane) {
  if (lane.thread) return `rank ${lane.rank}, thread ${lane.thread}`;
  const count = spansCount(lane.ranks);
  if (count === 1) return `rank ${lane.rank}${lane.coordinates ? ` (${lane.coordinates})` : ""}`;
  return `${ranksText(lane.ranks)} \u00b7 ${count.toLocaleString("en")} alike`;
}

/** "all_reduce #9". @param {Run} run @param {number} call */
function callName(run, call) {
  return call < 0 ? "a call" : `${run.textOf(call, "operation")} #${run.calls.sequence[call]}`;
}

/**
 * What the calls of one column are, in a few words: their operation, their group if the run has several, and what of
 * DDP they are for. "" for different operations of one group, which have words beside them.
 * @param {Run} run @param {number[]} calls
 */
function headText(run, calls) {
  const distinct = (field) => [...new Set(calls.map((call) => run.textOf(call, field)))].filter((text) => text);
  const groups = distinct("group");
  const operations = [...new Set(calls.map((call) => plainOperation(run, call)))].filter((text) => text);
  if (operations.length > 1 && plainGroups(run, groups).length > 1) {
    const each = groups.map((group) => headText(run, calls.filter((call) => run.textOf(call, "group") === group)));
    return each.filter((text) => text).join(" / ");
  }
  if (operations.length > 1) return "";
  const named = run.hasGroups ? plainGroups(run, groups).join(", ") : "";
  const purposes = distinct("purpose");
  if (purposes.length && calls.some((call) => run.textOf(call, "origin") === "")) purposes.push("program");
  return [...operations, named, purposes.join(" / ")].filter((part) => part).join(" ");
}

/** Groups as there is room for above a column: of a device mesh those along one dimension are one. */
function plainGroups(run, groups) {
  const isMesh = run.lanes.some((lane) => lane.coordinates);
  return [...new Set(groups.map((group) => (isMesh ? group.replace(/ \([^()]*\)/, "") : `"${group}"`)))];
}

/** An operation as there is room for above a column: into what it gathers says little. */
function plainOperation(run, call) {
  return run.textOf(call, "operation").replace(/(_into)?_tensor$/, "");
}

/** "all_reduce #9 at train.py:27", with the group if the run has several. @param {Run} run @param {number} call */
function callWithLine(run, call) {
  const site = run.calls.site[call];
  const group = run.hasGroups ? ` on group "${run.textOf(call, "group")}"` : "";
  return callName(run, call) + group + (site === null ? "" : ` at ${run.sites[site].short}`);
}

/** The state of the call of a cell, in a few words. @param {Run} run @param {number} cell */
function stateOf(run, cell) {
  const slot = run.cellSlot[cell];
  if (run.isMissing(cell)) return "missing: it never came";
  if (run.odd.has(cell)) return `differs: ${textAt(run.odd.get(cell))}`;
  if (run.slots.state[slot] === "x") return "other calls of its slot differ";
  if (run.slots.state[slot] === "m") return "matched";
  const missing = run.slots.missing[slot];
  if (missing === undefined) return "never matched";
  const absent = spansCount(missing);
  const enough = run.anySuffices.has(slot) ? ", one of them is enough" : "";
  return `waits, ${absent} of ${absent + run.slots.size[slot]} missing${enough}`;
}

/** The text of a cell for a screen reader. @param {Run} run @param {number} cell */
function cellLabel(run, cell) {
  const lane = run.lanes[run.cellLane[cell]];
  return `${laneName(lane)}, ${callName(run, run.callAt(cell))}, ${stateOf(run, cell)}`;
}

/** The line that hovering shows. @param {Run} run @param {number} cell */
function cellLine(run, cell) {
  const call = run.callAt(cell);
  const parts = [cellLabel(run, cell), run.textOf(call, "signature"), `group "${run.textOf(call, "group")}"`];
  parts.push(run.textOf(call, "origin"));
  return parts
    .filter((part) => part)
    .map((part) => shortened(part))
    .join(" \u00b7 ");
}

/** @param {string} text */
function shortened(text, longest = 120) {
  const letters = Array.from(text);
  return letters.length <= longest ? text : `${letters.slice(0, longest - 1).join("")}\u2026`;
}

/** A line that describes an event. @param {Run} run @param {number} event */
function eventLine(run, event) {
  const call = run.eventCall[event];
  const kind = run.kinds[event];
  const text = run.eventText.has(event) ? textAt(run.eventText.get(event)) : "";
  const what = call < 0 ? text : [callName(run, call), text].filter((part) => part).join(" ");
  const words = [laneName(run.lanes[run.eventLane[event]]), DATA.verbs[kind], what].filter((part) => part);
  return words.map((part) => shortened(part)).join(" ");
}

/** @param {Run} run @param {Mark} mark */
function markLine(run, mark) {
  const more = mark.events.length > 1 ? ` (and ${mark.events.length - 1} more)` : "";
  return eventLine(run, mark.events[0]) + more;
}
