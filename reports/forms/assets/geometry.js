// Where things stand on the screen: columns to the right, lanes downwards, and which columns are in view.

const NARROWEST = 1.5;
const WIDEST = 64;
/** The narrowest column in which one reads what stands in it. */
const LEGIBLE = 24;
const HEAD = 84;
/** So many letters of a head are shown, and no fewer have room above the lanes. */
const HEAD_LETTERS = { most: 30, least: 14 };
/** How much a letter of a head, which leans, adds to its height. */
const HEAD_LETTER = 5.2;
const LABEL_LETTER = 7.2;
/** Room behind the last column, for a word beside it. */
const TAIL = 76;

class Geometry {
  /** @param {Run} run */
  constructor(run) {
    this.run = run;
    this.rows = run.lanes.map((_, lane) => lane);
    this.rowOf = new Map(this.rows.map((lane, row) => [lane, row]));
    this.columnWidth = LEGIBLE;
    this.left = 0;
    this.width = 800;
    const longest = Math.max(...run.lanes.map((lane) => laneName(lane).length));
    this.label = Math.round(Math.min(300, Math.max(84, 34 + longest * LABEL_LETTER)));
    this.gutter = 96;
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
    return (this.run.columns + this.run.lead + 0.6) * this.columnWidth + TAIL;
  }

  get contentHeight() {
    return this.head + this.rows.length * this.laneHeight + 10;
  }

  /** @param {number} column */
  x(column) {
    return this.label + (column + this.run.lead + 0.6) * this.columnWidth - this.left;
  }

  /** @param {number} lane */
  y(lane) {
    return this.head + (this.rowOf.get(lane) + 0.5) * this.laneHeight;
  }

  /** @param {number} x @returns {number} the column, not rounded */
  columnAt(x) {
    return (x + this.left - this.label) / this.columnWidth - this.run.lead - 0.6;
  }

  /** @param {number} y @returns {number|undefined} */
  laneAt(y) {
    return this.rows[Math.floor((y - this.head) / this.laneHeight)];
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
    const room = this.width - this.label - this.gutter - TAIL;
    return Math.max(NARROWEST, Math.min(WIDEST, room / (this.run.columns + this.run.lead + 0.6)));
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
