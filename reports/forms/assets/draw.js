// Draws what is in view of the lanes. Calls stand in few elements when there are many, in one each when there are few.

const FEW = 1500;
const SMALLEST_LABELLED = 8;
/** Of the word beside a cell where a call is missing: a click on it is one on the cell. */
const MISSING_WIDTH = 58;
/** Of a letter of such a word, at most. */
const LETTER_WIDTH = 7.2;

class Drawing {
  /**
   * @param {Run} run @param {Geometry} geometry @param {Progress} progress
   * @param {{group: number|null, name: string}} options the only group shown; what names of elements begin with
   */
  constructor(run, geometry, progress, { group, name }) {
    this.name = name;
    this.run = run;
    this.geometry = geometry;
    this.progress = progress;
    this.group = group;
    this.lanes = geometry.rows;
    [this.first, this.last] = geometry.visibleColumns();
    this.isDetailed = this.lanes.length * (this.last - this.first) <= FEW;
  }

  /** Everything, from back to front. @returns {SVGElement[]} */
  layers() {
    const { geometry, name } = this;
    const clips = [this.clip("columns", geometry.edge), this.clip("heads", geometry.width)];
    const body = svg(
      "g",
      { "clip-path": `url(#${name}-columns)` },
      ...this.tracks(),
      ...this.folds(),
      ...this.bars(),
      ...this.links(),
      ...new Messages(this).layers(),
      ...this.marks(),
      ...this.cells(),
      ...this.difference(),
    );
    const margins = new Margins(this);
    return [svg("defs", {}, hatching(name), ...clips), margins.heads(), body, ...margins.labels(), ...margins.ends()];
  }

  /** What is drawn to the right of the ranks, up to there. @param {string} of @param {number} right */
  clip(of, right) {
    const { geometry, name } = this;
    const width = Math.max(0, right - geometry.label);
    const room = svg("rect", { x: geometry.label, y: 0, width, height: geometry.contentHeight });
    return svg("clipPath", { id: `${name}-${of}` }, room);
  }

  /** @param {number} cell */
  isShown(cell) {
    const { run } = this;
    if (!this.geometry.rowOf.has(run.cellLane[cell])) return false;
    return this.group === null || run.calls.group[run.callAt(cell)] === this.group;
  }

  /** @param {number} cell */
  hasHappened(cell) {
    return this.run.isMissing(cell) ? this.progress.isEnd : this.run.cellEvent[cell] <= this.progress.now;
  }

  /** The line that each lane runs on, as far as it got. */
  tracks() {
    const { run, geometry } = this;
    return this.lanes.map((lane) => {
      const end = run.lanes[lane].end;
      const isOver = end === "returned" || end === "raised";
      const last = run.marksOf[lane].at(-1);
      const stop = isOver && last ? geometry.x(last.position) : geometry.edge;
      const y = geometry.y(lane);
      return svg("path", { class: "track", d: `M${geometry.label} ${y}H${Math.max(geometry.label, stop)}` });
    });
  }

  bars() {
    const { run, geometry } = this;
    const found = [];
    for (const bar of run.bars) {
      if (bar.wait > this.progress.now || !geometry.rowOf.has(bar.lane)) continue;
      const fold = bar.end !== null && geometry.folds.at(bar.end);
      if (fold && fold === geometry.folds.at(bar.start)) continue;
      const end = bar.end === null ? geometry.edge : geometry.x(bar.end);
      const start = geometry.x(bar.start);
      if (end < geometry.label || start > geometry.edge) continue;
      const height = Math.max(3, geometry.radius * 1.1);
      const open = bar.done === null || bar.done > this.progress.now;
      const kind = bar.done === null ? "bar forever" : open ? "bar open" : "bar over";
      const y = geometry.y(bar.lane) - height / 2;
      const fill = open ? { fill: `url(#${this.name}-hatching)` } : {};
      const size = { width: Math.max(1, end - start), height };
      found.push(svg("rect", { class: kind, x: start, y, ...size, rx: 2, ...fill, "data-wait": bar.wait }));
    }
    return found;
  }

  /** What stands for columns that are folded: a button. */
  folds() {
    const { geometry } = this;
    const top = geometry.head - 4;
    const height = geometry.contentHeight - 6 - top;
    return geometry.folds.closed.map((fold) => {
      const x = geometry.x((fold.first + fold.last) / 2);
      const label = { tabindex: 0, role: "button", "aria-label": `${fold.what} ${fold.why}: show them` };
      const box = { x: x - FOLD_WIDTH / 2 + 2, y: top, width: FOLD_WIDTH - 4, height, rx: 6 };
      return svg(
        "g",
        { class: "fold", "data-fold": geometry.folds.all.indexOf(fold), ...label },
        svg("rect", box),
        svg("text", { x, y: top + height / 2 - 3 }, `${fold.what} `),
        svg("text", { x, y: top + height / 2 + 12 }, fold.why),
      );
    });
  }

  /** Lines between the calls of a slot. */
  links() {
    const pen = new Pen();
    for (const slot of this.slotsInView()) {
      const shown = this.run.bySlot[slot].filter((cell) => this.isShown(cell));
      if (shown.length > 1 && !this.run.isMessage(shown[0])) pen.draw(this.linkClass(slot), this.linkPath(shown));
    }
    return pen.elements();
  }

  slotsInView() {
    const slots = new Set();
    for (const lane of this.lanes) {
      for (const cell of this.inView(lane)) slots.add(this.run.cellSlot[cell]);
    }
    return slots;
  }

  /** The cells of a lane that are in view. @param {number} lane */
  inView(lane) {
    const { run, geometry } = this;
    const cells = run.byLane[lane];
    const found = cells.slice(firstFrom(run, cells, this.first), firstFrom(run, cells, this.last + 1));
    return geometry.folds.closed.length ? found.filter((cell) => !geometry.folds.at(run.cellColumn[cell])) : found;
  }

  linkClass(slot) {
    const { run, progress } = this;
    const { state, match } = run.slots;
    const isVeiled = match[slot] < 0 ? !progress.isEnd : match[slot] > progress.now;
    const isTie = run.bySlot[slot].some((cell) => run.side.has(cell));
    const kind = state[slot] === "x" ? (isTie ? "link tie" : "link odd") : run.lacks(slot) ? `link open${run.colourOf(slot)}` : "link";
    return isVeiled ? `${kind} veiled` : kind;
  }

  /** @param {number[]} shown cells of one slot */
  linkPath(shown) {
    const { run, geometry } = this;
    const points = shown.map(
      (cell) => `${tenths(geometry.x(run.cellColumn[cell]))} ${tenths(geometry.y(run.cellLane[cell]))}`,
    );
    return `M${points.join("L")}`;
  }

  cells() {
    const pen = new Pen();
    const single = [];
    for (const lane of this.lanes) {
      for (const cell of this.inView(lane)) {
        if (!this.isShown(cell)) continue;
        if (this.run.isMissing(cell)) single.push(this.missing(cell));
        else this.call(cell, pen, single);
      }
    }
    return [...pen.elements(), ...single];
  }

  /** @param {number} cell */
  missing(cell) {
    const { run, geometry } = this;
    const half = Math.max(4, geometry.radius * 1.15);
    const x = geometry.x(run.cellColumn[cell]);
    const y = geometry.y(run.cellLane[cell]);
    const box = svg("rect", { class: "box", x: x - half, y: y - half, width: 2 * half, height: 2 * half, rx: 2 });
    const veiled = this.hasHappened(cell) ? "" : " veiled";
    const group = svg(
      "g",
      { class: `missing${run.colourOf(run.cellSlot[cell])}${veiled}`, "data-cell": cell },
      box,
    );
    if (half >= SMALLEST_LABELLED && !this.isCrowded(cell)) {
      const reach = { x: x - half, y: y - half - 9, width: 2 * half + MISSING_WIDTH, height: 2 * half + 9 };
      group.prepend(svg("rect", { class: "reach", ...reach }));
      group.append(svg("text", { x: x + half + 4, y: y - half + 2, class: "word" }, "missing"));
    }
    return group;
  }

  /** True if something stands where the word beside a cell would. @param {number} cell */
  isCrowded(cell) {
    const { run, geometry } = this;
    const next = run.byLane[run.cellLane[cell]].find((other) => run.cellColumn[other] > run.cellColumn[cell]);
    return next !== undefined && (run.cellColumn[next] - run.cellColumn[cell]) * geometry.columnWidth < 80;
  }

  /** Where the failing and the passing run of an exploration part. */
  difference() {
    const { run, geometry } = this;
    if (run.marked === null || !geometry.rowOf.has(run.eventLane[run.marked])) return [];
    const x = geometry.x(run.columnOf(run.marked));
    const y = geometry.y(run.eventLane[run.marked]);
    const half = Math.max(7, geometry.radius * 1.6);
    const box = svg("rect", { class: "difference", x: x - half, y: y - half, width: 2 * half, height: 2 * half, rx: 4 });
    const left = Math.max(geometry.label, Math.min(x - half, geometry.edge - LETTER_WIDTH * DATA.mark.length));
    return [box, svg("text", { class: "word difference-word", x: left, y: y + half + 11 }, DATA.mark)];
  }

  /** @param {number} cell @param {Pen} pen @param {SVGElement[]} single */
  call(cell, pen, single) {
    const { run, geometry } = this;
    const call = run.eventCall[run.cellEvent[cell]];
    const x = tenths(geometry.x(run.cellColumn[cell]));
    const y = tenths(geometry.y(run.cellLane[cell]));
    const radius = tenths(geometry.radius);
    const family = DATA.families[run.calls.family[call]];
    const shape = family === "message" && run.textOf(call, "operation") === "recv" ? "received" : family;
    const classes = this.callClasses(cell, call, family);
    const path = SHAPES[shape](x, y, radius);
    if (!this.isDetailed) pen.draw(classes, path);
    else single.push(svg("path", { class: classes, d: path, "data-cell": cell }));
    this.decorate(cell, call, x, y, single);
  }

  callClasses(cell, call, family) {
    const { run } = this;
    const classes = ["call", family];
    if (run.calls.shadow[call]) classes.push("shadow");
    if (run.side.has(cell)) classes.push(`side side${run.side.get(cell)}`);
    else if (run.odd.has(cell)) classes.push("odd");
    if (!this.hasHappened(cell)) classes.push("veiled");
    return classes.join(" ");
  }

  /** A ring, the bucket's number, what is odd. */
  decorate(cell, call, x, y, single) {
    const { run, geometry } = this;
    const slot = run.cellSlot[cell];
    const radius = geometry.radius;
    const veiled = this.hasHappened(cell) ? "" : " veiled";
    if (run.lacks(slot) || run.slots.state[slot] === "x") {
      const waits = run.isBlamed(cell) ? "" : " waiting";
      const kind = run.lacks(slot) ? `ring${waits}` : run.odd.has(cell) ? "ring" : "ring other";
      single.push(
        svg("circle", {
          class: kind + run.colourOf(slot) + run.sideOf(cell) + veiled,
          cx: x,
          cy: y,
          r: radius + Math.max(2, radius * 0.45),
        }),
      );
    }
    const bucket = run.calls.bucket[call];
    if (this.isDetailed && bucket !== null && radius >= SMALLEST_LABELLED) {
      const shadow = run.calls.shadow[call] ? " shadow" : "";
      single.push(svg("text", { class: `bucket${shadow}${veiled}`, x, y: y + 3.5 }, `b${bucket}`));
    }
    if (run.slots.state[slot] === "x" && radius >= 5) this.contrast(cell, call, x, y, single, veiled);
  }

  /** What a call of a slot whose calls differ has instead. */
  contrast(cell, call, x, y, single, veiled) {
    const { run, geometry } = this;
    const odd = run.odd.has(cell) ? textAt(run.odd.get(cell)) : "";
    const other = run.beside.has(cell) ? textAt(run.beside.get(cell)) : run.textOf(call, "operation");
    const word = odd && !run.side.has(cell) ? `\u2260 ${odd}` : odd || other;
    const at = { x: x + geometry.radius * 1.8, y: y - geometry.radius * 0.9, "data-cell": cell };
    const kind = `word${odd ? "" : " other"}${run.sideOf(cell)}${veiled}`;
    single.push(svg("text", { class: kind, ...at }, shortened(word, 28)));
  }

  marks() {
    const pen = new Pen();
    const { run, geometry } = this;
    for (const lane of this.lanes) {
      for (const mark of run.marksOf[lane]) {
        if (mark.position < this.first || mark.position > this.last || geometry.folds.at(mark.position)) continue;
        const kind = run.kinds[mark.events[0]];
        const veiled = mark.events[0] <= this.progress.now ? "" : " veiled";
        pen.draw(
          `mark ${MARK_NAMES[kind]}${veiled}`,
          markPath(kind, tenths(geometry.x(mark.position)), geometry.y(lane), geometry.radius),
        );
      }
    }
    return pen.elements();
  }
}
