// Where things stand on the screen: columns to the right, lanes downwards, and which columns are in view.

const NARROWEST = 1.5;
const WIDEST = 110;
/** The narrowest column in which one reads what stands in it. */
const LEGIBLE = 24;
const HEAD = 84;
/** So many letters of a head are shown, and no fewer have room above the lanes. */
const HEAD_LETTERS = { most: 30, least: 14 };
/** How much a letter of a head, which leans, adds to its height. */
const HEAD_LETTER = 5.2;
const LABEL_LETTER = 7.2;
/** Room behind the last column, for a word beside it. */
const TAIL = 80;

class Geometry {
  /** @param {Run} run */
  constructor(run) {
    this.run = run;
    this.folds = new Folds(run.folds);
    this.bands = bandsOf(run.lanes);
    this.rows = run.lanes.map((_, lane) => lane);
    this.rowOf = new Map(this.rows.map((lane, row) => [lane, row]));
    this.columnWidth = LEGIBLE;
    this.left = 0;
    this.width = 800;
    this.longest = Math.max(...run.lanes.map((_, lane) => this.labelOf(lane).length));
    this.isNarrow = false;
    this.headOf = new Map();
    this.place();
    this.headLetters = HEAD_LETTERS.least;
    for (const calls of run.callsByColumn(run.cellColumn.keys()).values())
      this.headLetters = Math.min(HEAD_LETTERS.most, Math.max(this.headLetters, headText(run, calls).length));
    /** The height of what stands above the lanes. */
    this.head = HEAD + Math.round((this.headLetters - HEAD_LETTERS.least) * HEAD_LETTER);
  }

  /** @param {number[]} lanes those to show */
  show(lanes) {
    this.rows = lanes;
    this.rowOf = new Map(lanes.map((lane, row) => [lane, row]));
    this.place();
  }

  /** Take the width that there is; there is less room for names on a phone. @param {number} width */
  fill(width) {
    this.width = width;
    this.isNarrow = width < 560;
  }

  get label() {
    const [least, most] = this.isNarrow ? [62, 130] : [84, 300];
    return Math.round(Math.min(most, Math.max(least, this.labelRoom + 4 + this.longest * LABEL_LETTER)));
  }

  /** What of the room for a label is none of its letters'. */
  get labelRoom() {
    return this.isNarrow ? 22 : 30;
  }

  get gutter() {
    return this.isNarrow ? 86 : 96;
  }

  /** What stands to the left of a lane; its band says the rest. @param {number} lane */
  labelOf(lane) {
    const info = this.run.lanes[lane];
    if (info.thread) return `\u2514 ${info.thread}`;
    if (!this.bands || !info.coordinates) return laneName(info);
    return `rank ${info.rank} \u00b7 ${info.coordinates.split(", ").at(-1)}`;
  }

  /** Find which lanes begin a band, and how many bands there are above each. */
  place() {
    this.headOf = new Map();
    this.above = [];
    for (const [row, lane] of this.rows.entries()) {
      const isFirst = this.bands && (row === 0 || this.bands[lane] !== this.bands[this.rows[row - 1]]);
      if (isFirst) this.headOf.set(lane, this.bands[lane]);
      this.above.push(this.headOf.size);
    }
  }

  get laneHeight() {
    return Math.max(13, Math.min(46, Math.floor(640 / Math.max(1, this.rows.length))));
  }

  /** Radius of a call. */
  get radius() {
    return Math.max(0.8, Math.min(11, this.laneHeight * 0.32, this.columnWidth * 0.36));
  }

  /** The width of all columns, and of what stands beside them. */
  get contentWidth() {
    return this.label + this.gutter + this.columnsWidth;
  }

  get columnsWidth() {
    return (this.shownColumns + this.run.lead + 0.6) * this.columnWidth + this.folds.width + TAIL;
  }

  get shownColumns() {
    return this.folds.shown(this.run.columns);
  }

  get contentHeight() {
    return this.head + this.rows.length * this.laneHeight + this.headOf.size * BAND_HEIGHT + 10;
  }

  /** @param {number} column */
  x(column) {
    const lead = (this.run.lead + 0.6) * this.columnWidth;
    return this.label + lead + this.folds.distance(column, this.columnWidth) - this.left;
  }

  /** @param {number} lane */
  y(lane) {
    const row = this.rowOf.get(lane);
    return this.head + (row + 0.5) * this.laneHeight + this.above[row] * BAND_HEIGHT;
  }

  /** @param {number} x @returns {number} the column, not rounded */
  columnAt(x) {
    const lead = (this.run.lead + 0.6) * this.columnWidth;
    return this.folds.column(x + this.left - this.label - lead, this.columnWidth);
  }

  /** @param {number} y @returns {number|undefined} */
  laneAt(y) {
    return this.rows.find((lane) => Math.abs(this.y(lane) - y) <= this.laneHeight / 2);
  }

  /** The right edge of the columns. */
  get edge() {
    return this.width - this.gutter;
  }

  /** The first and the last column in view, and one more on each side. */
  visibleColumns() {
    return [Math.floor(this.columnAt(this.label)) - 1, Math.ceil(this.columnAt(this.edge)) + 1];
  }

  /** The width of a column at which all of them are in view. */
  fitting() {
    const room = this.width - this.label - this.gutter - TAIL - this.folds.width;
    return Math.max(NARROWEST, Math.min(WIDEST, room / (this.shownColumns + this.run.lead + 0.6)));
  }
}

/**
 * Index of the first of a lane's cells whose column is at least this.
 * @param {Run} run @param {number[]} cells @param {number} column
 */
function firstFrom(run, cells, column) {
  let low = 0;
  let high = cells.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (run.cellColumn[cells[middle]] < column) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** @template T @param {T[]} values @param {(value: T) => number} distance @returns {T|undefined} */
function nearest(values, distance) {
  let found;
  let least = Infinity;
  for (const value of values) {
    const here = distance(value);
    if (here < least) [found, least] = [value, here];
  }
  return found;
}
