// What has happened by an event of the schedule.

/** What has happened by now, lane by lane. */
class Progress {
  /** @param {Run} run @param {number} now the last event that has happened */
  constructor(run, now) {
    this.now = now;
    this.isEnd = now >= run.kinds.length - 1;
    /** @type {string[]} */
    this.state = run.lanes.map(() => "");
    for (let event = 0; event <= now && event < run.kinds.length; event++) this.take(run, event);
    if (this.isEnd)
      this.state = run.lanes.map((lane, index) => (lane.end === "unknown" ? this.state[index] : lane.end));
    this.running = this.isEnd ? -1 : run.eventLane[now];
  }

  take(run, event) {
    const kind = run.kinds[event];
    const states = { w: "waiting", d: "", i: "", r: "returned", x: "raised" };
    if (kind in states) this.state[run.eventLane[event]] = states[kind];
  }
}
