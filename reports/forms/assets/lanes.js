// The lanes of one run on the page: drawing, zoom, the pointer, and the keys.

const ZOOM = 1.3;
/** Room for the word beside a call that differs, or beside a missing one. */
const WORD_ROOM = 190;
const MISSING_ROOM = 88;
/** What a page of A4 has room for. */
const PAPER_WIDTH = 700;

class Lanes {
  /** @param {HTMLElement} section @param {Run} run @param {string} name */
  constructor(section, run, name) {
    this.section = section;
    this.run = run;
    this.name = name;
    this.geometry = new Geometry(run);
    this.area = section.querySelector(".lanes");
    this.drawing = section.querySelector(".drawing");
    for (const name of ["role", "aria-label"]) this.drawing.removeAttribute(name);
    this.extent = section.querySelector(".extent");
    this.tip = section.querySelector(".tip");
    this.details = new Details(section.querySelector(".details"), run);
    this.group = null;
    this.cursor = -1;
    this.now = run.kinds.length - 1;
    this.isDue = false;
    /** While the page is printed, the width that a column has on the screen; else 0. */
    this.widthOnScreen = 0;
    /** Called when columns were folded, or shown. */
    this.onFold = () => {};
    this.listen();
    this.measure();
    this.begin();
  }

  listen() {
    this.area.addEventListener("scroll", () => this.onScroll());
    this.area.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    this.area.addEventListener("pointermove", (event) => this.onHover(event));
    this.area.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.area.addEventListener("click", (event) => this.onClick(event));
    this.area.addEventListener("keydown", (event) => this.onKey(event));
    this.area.addEventListener("focus", () => this.onFocus());
    this.details.onToggle = () => this.onToggle();
    new ResizeObserver(() => this.onResize()).observe(this.area);
    window.addEventListener("beforeprint", () => this.onPaper());
    window.addEventListener("afterprint", () => this.onScreen());
  }

  /** Take the width of the area, and give it the height that the lanes need. */
  measure() {
    const { geometry, area, extent, drawing } = this;
    geometry.fill(area.clientWidth);
    extent.style.width = `${geometry.contentWidth}px`;
    extent.style.height = `${geometry.contentHeight}px`;
    drawing.setAttribute("width", geometry.width);
    drawing.setAttribute("height", geometry.contentHeight);
  }

  /** The first view: all of it if that is legible, else the end, where it went wrong. */
  begin() {
    const { geometry, run } = this;
    geometry.columnWidth = Math.max(geometry.fitting(), LEGIBLE);
    this.measure();
    const wrong = this.cellThatCounts();
    const end = wrong < 0 ? run.columns : run.cellColumn[wrong];
    const column = run.marked === null ? end : run.columnOf(run.marked);
    this.area.scrollLeft = geometry.x(column) - this.startOf(wrong);
    this.draw();
  }

  /** As `begin`, on paper: nothing scrolls there, and small columns are better than none. */
  onPaper() {
    const { geometry, run } = this;
    this.widthOnScreen = geometry.columnWidth;
    geometry.fill(PAPER_WIDTH);
    geometry.columnWidth = Math.max(geometry.fitting(), LEGIBLE / 2);
    const wrong = this.cellThatCounts();
    const from = geometry.x(wrong < 0 ? run.columns : run.cellColumn[wrong]) + geometry.left - this.startOf(wrong);
    this.drawing.setAttribute("width", String(PAPER_WIDTH));
    this.extent.style.width = `${PAPER_WIDTH}px`;
    this.draw(Math.max(0, Math.min(from, geometry.contentWidth - PAPER_WIDTH)));
  }

  onScreen() {
    this.geometry.columnWidth = this.widthOnScreen;
    this.widthOnScreen = 0;
    this.measure();
    this.draw();
  }

  /** A cell of calls that differ, else one that is the cause, else one that waits for good; -1 if nothing is wrong. */
  cellThatCounts() {
    const { run } = this;
    const signs = [
      (slot) => run.slots.state[slot] === "x",
      (slot) => run.colourOf(slot) === " slot0",
      (slot) => run.lacks(slot),
    ];
    const found = signs.map((sign) => run.cellSlot.findIndex(sign));
    return found.find((cell) => cell >= 0) ?? -1;
  }

  /** Where the column that counts stands at first: with room for the word beside it. @param {number} cell or -1 */
  startOf(cell) {
    const { geometry, run } = this;
    const word = run.odd.has(cell) || run.beside.has(cell) ? WORD_ROOM : MISSING_ROOM;
    return Math.max(geometry.label + 1.6 * geometry.columnWidth, geometry.edge - Math.max(word, geometry.width * 0.18));
  }

  redraw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => this.draw());
  }

  draw(left = this.area.scrollLeft) {
    this.isDue = false;
    const { geometry } = this;
    geometry.left = left;
    const hadFocus = this.drawing.contains(document.activeElement);
    const progress = new Progress(this.run, this.now);
    const drawing = new Drawing(this.run, geometry, progress, { group: this.group, name: this.name });
    const cursor = this.cursor < 0 ? [] : [this.cursorElement()];
    this.drawing.replaceChildren(...drawing.layers(), ...cursor);
    this.area.tabIndex = this.cursor < 0 ? 0 : -1;
    if (hadFocus && cursor.length) cursor[0].focus({ preventScroll: true });
  }

  /** What has the focus, and says to a screen reader what it stands on. */
  cursorElement() {
    const { geometry, run, cursor } = this;
    const x = geometry.x(run.cellColumn[cursor]);
    const y = geometry.y(run.cellLane[cursor]);
    const half = Math.max(6, geometry.radius * 1.7);
    const box = svg("rect", { x: x - half, y: y - half, width: 2 * half, height: 2 * half, rx: 4 });
    const label = cellLabel(run, cursor);
    return svg("g", { class: "cursor", tabindex: 0, role: "button", "aria-label": label, "data-cursor": cursor }, box);
  }

  /** Put the cursor on a cell, bring it into view, and let its details follow. */
  moveTo(cell) {
    this.cursor = cell;
    this.reveal(cell);
    this.draw();
    this.focusCursor();
    if (this.details.isOpen) this.details.showCell(cell);
    if (!this.run.isMissing(cell)) history.replaceState(null, "", this.linkTo(this.run.cellEvent[cell]));
  }

  /** The end of the page's address that leads to an event, as its number in the whole run. @param {number} event */
  linkTo(event) {
    return `#${this.name}-event${this.run.numberOf(event)}`;
  }

  /** Go to the event that the page's address names, if it is one of this run and has a call. */
  followLink() {
    const { run } = this;
    const event = Array.from(run.kinds).findIndex((_, each) => this.linkTo(each) === location.hash);
    const cell = event < 0 ? -1 : run.cellOf(event);
    if (cell < 0) return;
    this.moveTo(cell);
    this.details.showCell(cell);
  }

  focusCursor() {
    const cursor = this.drawing.querySelector(".cursor");
    cursor.focus({ preventScroll: true });
    cursor.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /** Scroll until the column of a cell is in view. */
  reveal(cell) {
    const { geometry, area } = this;
    const fold = geometry.folds.at(this.run.cellColumn[cell]);
    if (fold) this.open(fold);
    const x = geometry.x(this.run.cellColumn[cell]);
    const side = geometry.columnWidth + 12;
    if (x < geometry.label + side) area.scrollLeft += x - geometry.label - side;
    if (x > geometry.edge - side) area.scrollLeft += x - geometry.edge + side;
    geometry.left = area.scrollLeft;
  }

  /** Show the columns of a fold. @param {{first: number, isClosed: boolean}} fold */
  open(fold) {
    fold.isClosed = false;
    this.narrow();
    this.measure();
    this.onFold();
  }

  /** Make columns no wider than need be, as there are more of them now. */
  narrow() {
    const { geometry } = this;
    geometry.columnWidth = Math.min(geometry.columnWidth, Math.max(geometry.fitting(), LEGIBLE));
  }

  /** Fold what is alike, or show all of it; what is in the middle stays there. @param {boolean} isClosed */
  fold(isClosed) {
    const { geometry } = this;
    const middle = geometry.label + (geometry.edge - geometry.label) / 2;
    const column = geometry.columnAt(middle);
    geometry.folds.setAll(isClosed);
    this.narrow();
    this.measure();
    this.area.scrollLeft += geometry.x(column) - middle;
    this.onFold();
    this.draw();
  }

  /** Show what had happened after an event. */
  goTo(event) {
    this.now = event;
    const cell = this.run.cellOf(event);
    if (cell >= 0) this.reveal(cell);
    this.draw();
  }

  /** @param {number[]} lanes @param {number|null} group */
  filter(lanes, group) {
    this.geometry.show(lanes);
    this.group = group;
    const { cursor } = this;
    if (cursor >= 0 && !this.isShown(cursor)) this.cursor = -1;
    this.measure();
    this.draw();
  }

  isShown(cell) {
    const { run, group } = this;
    return (
      this.geometry.rowOf.has(run.cellLane[cell]) && (group === null || run.calls.group[run.callAt(cell)] === group)
    );
  }

  /** @param {number} factor @param {number} x what stays where it is */
  zoom(factor, x = this.geometry.label + (this.geometry.edge - this.geometry.label) / 2) {
    const { geometry } = this;
    const column = geometry.columnAt(x);
    geometry.columnWidth = Math.min(WIDEST, Math.max(NARROWEST, geometry.columnWidth * factor));
    this.measure();
    this.area.scrollLeft += geometry.x(column) - x;
    this.draw();
  }

  fit() {
    this.geometry.columnWidth = this.geometry.fitting();
    this.measure();
    this.draw();
  }

  onWheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoom(event.deltaY < 0 ? ZOOM : 1 / ZOOM, this.at(event).x);
  }

  at(event) {
    const box = this.drawing.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  /** The cell under the pointer, or the mark. @returns {{cell?: number, mark?: Mark}} */
  hit(event) {
    const { geometry, run } = this;
    const { x, y } = this.at(event);
    const lane = geometry.laneAt(y);
    if (lane === undefined || y < geometry.head - 8 || x < geometry.label || x > geometry.edge) return {};
    const near = (position) => Math.abs(geometry.x(position) - x);
    const reach = Math.max(geometry.radius * 1.5, 5);
    const column = Math.round(geometry.columnAt(x));
    const cells = run.byLane[lane].slice(
      firstFrom(run, run.byLane[lane], column - 3),
      firstFrom(run, run.byLane[lane], column + 4),
    );
    const cell = nearest(
      cells.filter((each) => this.isShown(each)),
      (each) => near(run.cellColumn[each]),
    );
    if (cell !== undefined && near(run.cellColumn[cell]) <= reach) return { cell };
    const mark = nearest(run.marksOf[lane], (each) => near(each.position));
    return mark !== undefined && near(mark.position) <= 6 ? { mark } : this.hitDrawn(event.target);
  }

  /** What a word beside a cell belongs to, or what the bar of a wait waits for. @param {Element} target */
  hitDrawn(target) {
    const { run } = this;
    const { cell, wait } = target.closest("[data-cell], [data-wait]")?.dataset ?? {};
    if (cell !== undefined) return { cell: Number(cell) };
    if (wait === undefined) return {};
    const event = Number(wait);
    return run.eventCall[event] < 0
      ? { mark: { lane: run.eventLane[event], position: 0, events: [event] } }
      : { cell: run.cellOf(event) };
  }

  onHover(event) {
    const { cell, mark } = this.hit(event);
    const text = cell !== undefined ? cellLine(this.run, cell) : mark ? markLine(this.run, mark) : "";
    this.tip.hidden = !text;
    this.tip.textContent = text;
    const { x, y } = this.at(event);
    const room = this.geometry.width - Math.min(460, this.geometry.width);
    this.tip.style.left = `${Math.max(0, Math.min(x, room))}px`;
    this.tip.style.top = `${y + 20}px`;
  }

  onClick(event) {
    this.tip.hidden = true;
    if (this.onButton(event.target)) return;
    const { cell, mark } = this.hit(event);
    if (cell !== undefined) {
      this.details.showCell(cell);
      this.moveTo(cell);
    } else if (mark) this.details.showMark(mark);
  }

  /** Do what a sign does that is a button: show the columns of a fold, or the ranks of a lane. @param {Element} target */
  onButton(target) {
    const { fold, ranks } = target.closest("[data-fold], [data-ranks]")?.dataset ?? {};
    if (fold !== undefined) {
      const opened = this.geometry.folds.all[Number(fold)];
      this.open(opened);
      this.area.scrollLeft += this.geometry.x(opened.first) - this.geometry.label - 2 * this.geometry.columnWidth;
      this.draw();
    }
    if (ranks !== undefined) this.details.showRanks(Number(ranks));
    return fold !== undefined || ranks !== undefined;
  }

  /** The area is reached by Tab before there is a cursor: it goes where it went wrong, or to the last call. */
  onFocus() {
    if (this.cursor >= 0) return;
    const { run } = this;
    const shown = run.cellSlot.map((_, cell) => cell).filter((cell) => this.isShown(cell));
    const wrong = shown.find((cell) => run.isMissing(cell) || run.odd.has(cell));
    const cell = wrong ?? shown.at(-1);
    if (cell !== undefined && this.area.matches(":focus-visible")) this.moveTo(cell);
  }

  /** The details take room from the lanes, or give it back: what was in view whole stays so, and the cursor does. */
  onToggle() {
    const { geometry } = this;
    const wasWhole = geometry.contentWidth <= geometry.width;
    this.measure();
    if (wasWhole) geometry.columnWidth = Math.max(geometry.fitting(), LEGIBLE);
    this.measure();
    if (this.cursor >= 0) this.reveal(this.cursor);
    this.draw();
    if (!this.details.isOpen && this.cursor >= 0) this.focusCursor();
  }

  /** Not where the page itself has scrolled: it has drawn that already. */
  onScroll() {
    if (this.area.scrollLeft !== this.geometry.left) this.redraw();
  }

  onResize() {
    if (this.widthOnScreen || this.area.clientWidth === this.geometry.width) return;
    this.measure();
    this.redraw();
  }

  onKey(event) {
    const isButton = event.key === "Enter" || event.key === " ";
    if (isButton && this.onButton(event.target)) return event.preventDefault();
    const action = this.actions()[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.tip.hidden = true;
    action();
  }

  actions() {
    return {
      ArrowLeft: () => this.along(-1),
      ArrowRight: () => this.along(1),
      ArrowUp: () => this.across(-1),
      ArrowDown: () => this.across(1),
      Home: () => this.toEnd(0),
      End: () => this.toEnd(-1),
      Enter: () => this.cursor >= 0 && this.details.showCell(this.cursor),
      " ": () => this.cursor >= 0 && this.details.showCell(this.cursor),
    };
  }

  shownIn(lane) {
    return this.run.byLane[lane].filter((cell) => this.isShown(cell));
  }

  along(direction) {
    if (this.cursor < 0) return this.onFocus();
    const cells = this.shownIn(this.run.cellLane[this.cursor]);
    const next = cells[cells.indexOf(this.cursor) + direction];
    if (next !== undefined) this.moveTo(next);
  }

  toEnd(index) {
    if (this.cursor < 0) return this.onFocus();
    const cell = this.shownIn(this.run.cellLane[this.cursor]).at(index);
    if (cell !== undefined) this.moveTo(cell);
  }

  /** To the next lane up or down that has a call in the slot; else to the nearest call of the next one that has any. */
  across(direction) {
    if (this.cursor < 0) return this.onFocus();
    const { run, geometry, cursor } = this;
    const row = (cell) => geometry.rowOf.get(run.cellLane[cell]);
    const ahead = (cell) => this.isShown(cell) && (row(cell) - row(cursor)) * direction > 0;
    const same = nearest(run.bySlot[run.cellSlot[cursor]].filter(ahead), (cell) =>
      Math.abs(row(cell) - row(cursor)),
    );
    const next = same ?? this.nearestBeyond(row(cursor), direction);
    if (next !== undefined) this.moveTo(next);
  }

  nearestBeyond(row, direction) {
    const { run, geometry, cursor } = this;
    for (let other = row + direction; other >= 0 && other < geometry.rows.length; other += direction) {
      const cells = this.shownIn(geometry.rows[other]);
      const found = nearest(cells, (cell) => Math.abs(run.cellColumn[cell] - run.cellColumn[cursor]));
      if (found !== undefined) return found;
    }
    return undefined;
  }
}
