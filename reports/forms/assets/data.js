// The data of the page, decoded: columns of numbers, and the indices by which the other scripts find things.
//
// A *place* is where a call stands, or where one is missing: places 0 to items-1 are the calls, in the order in which
// they were issued, the others the missing ones.

/**
 * @typedef {{rank: number, ranks: number[][], thread: string, end: string, text: number, culprit: boolean}} Lane
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
    this.readPlaces(raw);
    this.indexPlaces();
    this.lead = this.marks.some((mark) => mark.position < 0) ? 1 : 0;
  }

  /** @param {any} raw */
  readPlaces(raw) {
    this.items = raw.items.slot.length;
    this.placeEvent = summed(raw.items.event);
    this.placeSlot = [...raw.items.slot, ...raw.missing.map((place) => place[2])];
    this.placeColumn = [...raw.items.column, ...raw.missing.map((place) => place[1])];
    this.placeLane = [
      ...this.placeEvent.map((event) => this.eventLane[event]),
      ...raw.missing.map((place) => place[0]),
    ];
    this.odd = new Map(raw.items.odd);
    this.beside = new Map(raw.items.beside);
  }

  indexPlaces() {
    /** Places of each lane, from left to right. @type {number[][]} */
    this.byLane = this.lanes.map(() => []);
    /** Places of each slot. @type {number[][]} */
    this.bySlot = Array.from(this.slots.state, () => []);
    for (let place = 0; place < this.placeSlot.length; place++) {
      this.byLane[this.placeLane[place]].push(place);
      this.bySlot[this.placeSlot[place]].push(place);
    }
    for (const places of this.byLane) places.sort((one, other) => this.placeColumn[one] - this.placeColumn[other]);
    for (const places of this.bySlot) places.sort((one, other) => this.placeLane[one] - this.placeLane[other]);
    this.marksOf = this.lanes.map(() => []);
    for (const mark of this.marks) this.marksOf[mark.lane].push(mark);
    for (const marks of this.marksOf) marks.sort((one, other) => one.position - other.position);
  }

  /** The calls that stand in each column, each once. @param {Iterable<number>} places @returns {Map<number, number[]>} */
  callsByColumn(places) {
    const found = new Map();
    for (const place of places) {
      if (this.isMissing(place)) continue;
      const column = this.placeColumn[place];
      if (!found.has(column)) found.set(column, new Set());
      found.get(column).add(this.callAt(place));
    }
    return new Map([...found].map(([column, calls]) => [column, [...calls]]));
  }

  /** @param {number} place */
  isMissing(place) {
    return place >= this.items;
  }

  /** The call of a place; for a missing one, that which others of its slot made. @param {number} place */
  callAt(place) {
    const made = this.isMissing(place) ? this.bySlot[this.placeSlot[place]][0] : place;
    return this.isMissing(made) ? this.firstCall(this.placeSlot[place]) : this.eventCall[this.placeEvent[made]];
  }

  /** @param {number} slot */
  firstCall(slot) {
    const made = this.bySlot[slot].find((place) => !this.isMissing(place));
    return made === undefined ? -1 : this.eventCall[this.placeEvent[made]];
  }

  /** One field of a call as text. @param {number} call @param {string} field */
  textOf(call, field) {
    return call < 0 ? "" : textAt(this.calls[field][call]);
  }

  /** True if a rank waits for good in a slot. @param {number} slot */
  lacks(slot) {
    return slot in this.slots.colours;
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

  /** Where an event is seen: its call's place, or the last before it in its lane; else -1. @param {number} event */
  placeOf(event) {
    const lane = this.eventLane[event];
    const call = this.eventCall[event];
    let found = -1;
    for (const place of this.byLane[lane]) {
      if (this.isMissing(place) || this.placeEvent[place] > event) continue;
      if (this.eventCall[this.placeEvent[place]] === call) return place;
      found = place;
    }
    return found;
  }

  /** The column in which an event is seen: that of its mark, or of its place. @param {number} event */
  columnOf(event) {
    const mark = this.marksOf[this.eventLane[event]].find((each) => each.events.includes(event));
    const place = this.placeOf(event);
    return mark ? mark.position : place < 0 ? 0 : this.placeColumn[place];
  }

  /** The groups that calls were made on, in the order of their first calls. */
  groups() {
    return [...new Set(this.calls.group)];
  }
}
