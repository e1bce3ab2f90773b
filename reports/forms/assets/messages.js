// Messages: an arrow from each send to its receive, with the tag; half an arrow in the air for one that has no other half.

/** Columns have to be so wide for a tag to have room. */
const TAG_ROOM = 34;

class Messages {
  /** @param {Drawing} drawing */
  constructor(drawing) {
    this.drawing = drawing;
    this.run = drawing.run;
    this.geometry = drawing.geometry;
  }

  /** @returns {SVGElement[]} */
  layers() {
    if (!this.run.calls.peer.some((peer) => peer !== null)) return [];
    const pen = new Pen();
    const words = [];
    for (const slot of this.drawing.slotsInView()) this.message(slot, pen, words);
    for (const pair of this.run.near) this.nearMiss(pair, pen, words);
    return [...pen.elements(), ...words];
  }

  /** @param {number} slot @param {Pen} pen @param {SVGElement[]} words */
  message(slot, pen, words) {
    const { run, drawing } = this;
    const cells = run.bySlot[slot].filter((cell) => drawing.isShown(cell));
    if (!cells.length || !run.isMessage(cells[0])) return;
    const kind = drawing.linkClass(slot);
    if (cells.length === 1) return this.hanging(cells[0], pen, words);
    const [one, other] = cells.map((cell) => this.point(cell));
    const isBack = this.isReceive(cells[0]);
    const [from, to] = isBack ? [other, one] : [one, other];
    this.arrow(kind, from, to, pen);
    const made = cells.find((cell) => !run.isMissing(cell));
    if (run.hasTags && this.geometry.columnWidth >= TAG_ROOM && made !== undefined)
      words.push(this.word(`tag ${run.calls.tag[run.callAt(made)]}`, middle(from, to), "tag"));
  }

  /** Half a message: it leads towards its peer, or comes from there, and ends in the air. */
  hanging(cell, pen, words) {
    const { run, geometry } = this;
    const slot = run.cellSlot[cell];
    if (run.isMissing(cell) || run.isNear.has(cell) || run.slots.state[slot] !== "o") return;
    const call = run.callAt(cell);
    const peer = run.calls.peer[call];
    const lane = run.lanes.findIndex((each) => !each.thread && each.rank === peer);
    const isUp = lane >= 0 && geometry.rowOf.has(lane) && geometry.y(lane) < geometry.y(run.cellLane[cell]);
    const here = this.point(cell);
    const isReceive = this.isReceive(cell);
    const aside = (isReceive ? -0.8 : 0.8) * this.geometry.columnWidth;
    const away = { x: here.x + aside, y: here.y + (isUp ? -0.55 : 0.55) * geometry.laneHeight };
    const kind = this.drawing.linkClass(slot);
    if (isReceive) this.arrow(kind, away, here, pen);
    else this.arrow(kind, here, away, pen, 0);
    const colour = run.lacks(slot) ? run.colourOf(slot) : " slot1";
    if (colour === " slot1" && this.drawing.isCrowded(cell)) return;
    const at = { x: here.x + geometry.radius * 1.7, y: here.y - geometry.radius * 0.9 };
    words.push(this.word(messageWords(run, call), at, `tag hanging${colour}`, "start"));
  }

  /** A send and a receive that all but met: an arrow that is broken where it says why. */
  nearMiss({ send, receive, text }, pen, words) {
    if (![send, receive].every((cell) => cell !== undefined && this.drawing.isShown(cell))) return;
    const [from, to] = [this.point(send), this.point(receive)];
    const between = middle(from, to);
    const gap = (end) => ({ x: between.x + (end.x - between.x) * 0.2, y: between.y + (end.y - between.y) * 0.2 });
    pen.draw("link near", `M${point(from)}L${point(gap(from))}`);
    this.arrow("link near", gap(to), to, pen);
    const right = Math.max(from.x, to.x) + this.geometry.radius * 1.8;
    words.push(this.word(text, { x: right, y: between.y + 4 }, "near", "start"));
  }

  /** A line with a tip, which stands off what it leads to. */
  arrow(kind, from, to, pen, off = this.geometry.radius * 1.3) {
    const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
    const [dx, dy] = [(to.x - from.x) / length, (to.y - from.y) / length];
    const end = { x: to.x - dx * off, y: to.y - dy * off };
    const size = Math.max(3, this.geometry.radius * 0.7);
    const [left, right] = [-1, 1].map((side) => ({
      x: end.x - dx * size + side * dy * size * 0.5,
      y: end.y - dy * size - side * dx * size * 0.5,
    }));
    pen.draw(kind, `M${point(from)}L${point(end)}`);
    pen.draw(kind.replace("link", "tip-of"), `M${point(end)}L${point(left)}L${point(right)}z`);
  }

  word(text, { x, y }, kind, anchor = "middle") {
    return svg("text", { class: kind, x: tenths(x), y: tenths(y), "text-anchor": anchor }, shortened(text, 60));
  }

  point(cell) {
    const { run, geometry } = this;
    return { x: geometry.x(run.cellColumn[cell]), y: geometry.y(run.cellLane[cell]) };
  }

  isReceive(cell) {
    const { run } = this;
    const isReceive = run.textOf(run.callAt(cell), "operation") === "recv";
    return run.isMissing(cell) ? !isReceive : isReceive;
  }
}

/** "to rank 1, tag 7". @param {Run} run @param {number} call */
function messageWords(run, call) {
  const isReceive = run.textOf(call, "operation") === "recv";
  const peer = run.calls.peer[call];
  const tag = run.hasTags ? `, tag ${run.calls.tag[call]}` : "";
  return `${isReceive ? "from" : "to"} ${peer < 0 ? "any rank" : `rank ${peer}`}${tag}`;
}

function middle(one, other) {
  return { x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 };
}

function point({ x, y }) {
  return `${tenths(x)} ${tenths(y)}`;
}
