// Columns that tell nothing, shown as one: where each stands then. A click, or coming to one of their calls, opens them.

/** Room for what is said of folded columns. */
const FOLD_WIDTH = 128;

class Folds {
  /** @param {[number, number, string, string][]} raw */
  constructor(raw) {
    this.all = raw.map(([first, last, what, why]) => ({ first, last, what, why, isClosed: true }));
  }

  get closed() {
    return this.all.filter((fold) => fold.isClosed);
  }

  /** How many columns are shown. @param {number} columns of them all */
  shown(columns) {
    return this.closed.reduce((rest, fold) => rest - (fold.last - fold.first + 1), columns);
  }

  /** The width of what stands for those that are not. */
  get width() {
    return this.closed.length * FOLD_WIDTH;
  }

  /** The closed fold that a place is in; what stands behind its last column belongs to it. @param {number} column */
  at(column) {
    return this.all.find((fold) => fold.isClosed && fold.first - 0.5 < column && column < fold.last + 0.9);
  }

  /** How far a column is from the first one. @param {number} column @param {number} width of a column */
  distance(column, width) {
    let shift = 0;
    for (const fold of this.closed) {
      if (column >= fold.last + 0.5) shift += FOLD_WIDTH - (fold.last - fold.first + 1) * width;
      else if (column > fold.first - 0.5) return shift + (fold.first - 0.5) * width + FOLD_WIDTH / 2;
    }
    return column * width + shift;
  }

  /** The other way round: the column that is so far from the first one. @param {number} distance @param {number} width */
  column(distance, width) {
    let rest = distance;
    for (const fold of this.closed) {
      const start = (fold.first - 0.5) * width;
      if (rest < start) break;
      if (rest < start + FOLD_WIDTH) return (fold.first + fold.last) / 2;
      rest += (fold.last - fold.first + 1) * width - FOLD_WIDTH;
    }
    return rest / width;
  }

  /** @param {boolean} isClosed */
  setAll(isClosed) {
    for (const fold of this.all) fold.isClosed = isClosed;
  }
}
