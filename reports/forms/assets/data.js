// The data of the page, decoded: columns of numbers, and the indices by which the other scripts find things.
//
// A *cell* is where a call stands, or where one is missing: cells 0 to items-1 are the calls, in the order in which
// they were issued, the others the missing ones.

/**
 * @typedef {{rank: number, ranks: number[][], thread: string, end: string, text: number, culprit: boolean, coordinates: string}} Lane
 * @typedef {{lane: number, position: number, events: number[]}} Mark
 * @typedef {{lane: number, start: number, end: number|null, wait: number, done: number|null}} Bar
 */

const DATA = JSON.parse(document.getElementById("data").textContent);

/** @param {number} index @returns {string} */
function textAt(index) {
  return DATA.texts[index];
}

/** Sums of differences. @param {number[]} differences @returns {number[]} */
function summed(differences) {
  let total = 0;
  return differences.map((difference) => (total += difference));
}

/** A column: all its values, or the one that all of them have. @param {any[]|{each: any, count: number}} packed */
function unpacked(packed) {
  return Array.isArray(packed) ? packed : Array(packed.count).fill(packed.each);
}

/** A run, ready to be drawn. */
class Run {
  /** @param {any} raw as reports/forms/view.py makes it */
  constructor(raw) {
    this.world = raw.world;
    this.columns = raw.columns;
    /** @type {Lane[]} */
    this.lanes = raw.lanes;
    this.sites = raw.sites;
    this.calls = Object.fromEntries(Object.entries(raw.calls).map(([name, column]) => [name, unpacked(column)]));
    this.hasGroups = this.groups().length > 1;
    this.marked = raw.marked;
    this.folds = raw.folds;
    this.kinds = raw.events.kind;
    this.eventLane = raw.events.lane;
    this.eventCall = raw.events.call;
    this.eventStep = summed(raw.events.step);
    this.eventText = new Map(raw.events.text);
    this.times = raw.events.time;
    /** Of a run of which not all lanes are shown: how events are counted in all of it. */
    this.numbers = raw.numbers && { event: summed(raw.numbers.event), match: raw.numbers.match, all: raw.numbers.all };
    this.slots = raw.slots;
    this.slotRanks = unpacked(raw.slots.ranks);
    this.anySuffices = new Set(raw.slots.any);
    /** @type {Mark[]} */
    this.marks = raw.marks.map(([position, ...events]) => ({ lane: this.eventLane[events[0]], position, events }));
    /** @type {Bar[]} */
    this.bars = raw.bars.map(([start, end, wait, done]) => ({ lane: this.eventLane[wait], start, end, wait, done }));
    this.readCells(raw);
    this.indexCells();
    this.readMessages(raw);
    this.lead = this.marks.some((mark) => mark.position < 0) ? 1 : 0;
  }

  /** @param {any} raw */
  readCells(raw) {
    this.items = raw.items.slot.length;
    this.cellEvent = summed(raw.items.event);
    this.cellSlot = [...raw.items.slot, ...raw.missing.map((cell) => cell[2])];
    this.cellColumn = [...raw.items.column, ...raw.missing.map((cell) => cell[1])];
    this.cellLane = [
      ...this.cellEvent.map((event) => this.eventLane[event]),
      ...raw.missing.map((cell) => cell[0]),
    ];
    this.odd = new Map(raw.items.odd);
    this.beside = new Map(raw.items.beside);
    /** Of calls that differ, any of which may be wrong: which side each is on. */
    this.side = new Map(raw.items.side);
  }

  indexCells() {
    /** Cells of each lane, from left to right. @type {number[][]} */
    this.byLane = this.lanes.map(() => []);
    /** Cells of each slot. @type {number[][]} */
    this.bySlot = Array.from(this.slots.state, () => []);
    for (let cell = 0; cell < this.cellSlot.length; cell++) {
      this.byLane[this.cellLane[cell]].push(cell);
      this.bySlot[this.cellSlot[cell]].push(cell);
    }
    for (const cells of this.byLane) cells.sort((one, other) => this.cellColumn[one] - this.cellColumn[other]);
    for (const cells of this.bySlot) cells.sort((one, other) => this.cellLane[one] - this.cellLane[other]);
    this.marksOf = this.lanes.map(() => []);
    for (const mark of this.marks) this.marksOf[mark.lane].push(mark);
    for (const marks of this.marksOf) marks.sort((one, other) => one.position - other.position);
  }

  /** What is special about messages: which have tags, and which all but met. @param {any} raw */
  readMessages(raw) {
    this.hasTags = this.calls.tag.some((tag) => tag !== 0);
    const cells = new Map(this.cellEvent.map((event, cell) => [event, cell]));
    /** @type {{send: number, receive: number, text: string}[]} */
    this.near = raw.near.map(([send, receive, text]) => ({
      send: cells.get(send),
      receive: cells.get(receive),
      text: textAt(text),
    }));
    this.isNear = new Set(this.near.flatMap(({ send, receive }) => [send, receive]));
  }

  /** True if the call of a cell is a message. @param {number} cell */
  isMessage(cell) {
    const call = this.callAt(cell);
    return call >= 0 && this.calls.peer[call] !== null;
  }

  /** The calls that stand in each column, each once. @param {Iterable<number>} cells @returns {Map<number, number[]>} */
  callsByColumn(cells) {
    const found = new Map();
    for (const cell of cells) {
      if (this.isMissing(cell)) continue;
      const column = this.cellColumn[cell];
      if (!found.has(column)) found.set(column, new Set());
      found.get(column).add(this.callAt(cell));
    }
    return new Map([...found].map(([column, calls]) => [column, [...calls]]));
  }

  /** @param {number} cell */
  isMissing(cell) {
    return cell >= this.items;
  }

  /** The call of a cell; for a missing one, that which others of its slot made. @param {number} cell */
  callAt(cell) {
    const made = this.isMissing(cell) ? this.bySlot[this.cellSlot[cell]][0] : cell;
    return this.isMissing(made) ? this.firstCall(this.cellSlot[cell]) : this.eventCall[this.cellEvent[made]];
  }

  /** @param {number} slot */
  firstCall(slot) {
    const made = this.bySlot[slot].find((cell) => !this.isMissing(cell));
    return made === undefined ? -1 : this.eventCall[this.cellEvent[made]];
  }

  /** One field of a call as text. @param {number} call @param {string} field */
  textOf(call, field) {
    return call < 0 ? "" : textAt(this.calls[field][call]);
  }

  /** True if a rank waits for good in a slot. @param {number} slot */
  lacks(slot) {
    return slot in this.slots.colours;
  }

  /** True if the rank of a cell is to blame. @param {number} cell */
  isBlamed(cell) {
    return this.lanes[this.cellLane[cell]].culprit;
  }

  /** The number of an event in the whole run, counted from 1. @param {number} event */
  numberOf(event) {
    return (this.numbers ? this.numbers.event[event] : event) + 1;
  }

  /** The number of the event that filled a slot; 0 if none did. @param {number} slot */
  matchNumber(slot) {
    return (this.numbers ? this.numbers.match : this.slots.match)[slot] + 1;
  }

  /** How many events the whole run has. */
  get events() {
    return this.numbers ? this.numbers.all : this.kinds.length;
  }

  /** The ranks that made a call of a slot. @param {number} slot @returns {number[][]} */
  issuers(slot) {
    return this.slots.sets[this.slotRanks[slot]];
  }

  /** The class that gives a call its colour that is on one of several sides. @param {number} cell */
  sideOf(cell) {
    return this.side.has(cell) ? ` side${this.side.get(cell)}` : "";
  }

  /** The class that gives a slot which never filled its colour. @param {number} slot */
  colourOf(slot) {
    return this.lacks(slot) ? ` slot${this.slots.colours[slot]}` : "";
  }

  /** Virtual seconds. @param {number} event */
  timeOf(event) {
    let found = 0;
    for (const [index, time] of this.times) {
      if (index > event) break;
      found = time;
    }
    return found;
  }

  /** The last event of a lane that is such a one; -1 if there is none. @param {(event: number) => boolean} isOne */
  lastEvent(lane, isOne) {
    return this.eventLane.findLastIndex((each, event) => each === lane && isOne(event));
  }

  /** Where an event is seen: its call's cell, or the last before it in its lane; else -1. @param {number} event */
  cellOf(event) {
    const lane = this.eventLane[event];
    const call = this.eventCall[event];
    let found = -1;
    for (const cell of this.byLane[lane]) {
      if (this.isMissing(cell) || this.cellEvent[cell] > event) continue;
      if (this.eventCall[this.cellEvent[cell]] === call) return cell;
      found = cell;
    }
    return found;
  }

  /** The column in which an event is seen: that of its mark, or of its cell. @param {number} event */
  columnOf(event) {
    const mark = this.marksOf[this.eventLane[event]].find((each) => each.events.includes(event));
    const cell = this.cellOf(event);
    return mark ? mark.position : cell < 0 ? 0 : this.cellColumn[cell];
  }

  /** The groups that calls were made on, in the order of their first calls. */
  groups() {
    return [...new Set(this.calls.group)];
  }
}
