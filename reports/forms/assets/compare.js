// What differs between two ranks: the first call that is not the same, side by side.

class Compare {
  /** @param {HTMLElement} section @param {Run} run */
  constructor(section, run) {
    this.run = run;
    this.part = section.querySelector(".compare");
    this.choices = [...this.part.querySelectorAll("select")];
    this.result = this.part.querySelector(".compared");
    this.lanes = run.lanes.map((_, lane) => lane).filter((lane) => !run.lanes[lane].thread);
    this.part.hidden = this.lanes.length < 2;
    if (this.part.hidden) return;
    this.fill();
    this.part.addEventListener("toggle", () => this.part.open && this.show());
    for (const choice of this.choices) choice.addEventListener("change", () => this.show());
  }

  fill() {
    const { run, lanes } = this;
    const options = (choice) =>
      lanes.map((lane) => html("option", { value: String(lane) }, shortened(laneName(run.lanes[lane]), 40)));
    for (const choice of this.choices) choice.append(...options(choice));
    const odd = lanes.find((lane) => this.isOdd(lane)) ?? lanes.at(-1);
    const other = lanes.find((lane) => lane !== odd && !this.isOdd(lane)) ?? lanes.find((lane) => lane !== odd);
    [this.choices[0].value, this.choices[1].value] = [String(odd), String(other)];
  }

  /** True of a rank to blame; of sides, of those on any but the first. @param {number} lane */
  isOdd(lane) {
    const { run } = this;
    return run.lanes[lane].culprit || run.byLane[lane].some((cell) => run.side.get(cell) > 0);
  }

  show() {
    const lanes = this.choices.map((choice) => Number(choice.value));
    const calls = lanes.map((lane) => this.callsOf(lane));
    const longest = Math.max(calls[0].length, calls[1].length);
    let first = 0;
    while (first < longest && this.isSame(calls[0][first], calls[1][first])) first++;
    const words =
      first === longest
        ? `All ${longest} calls are the same.`
        : `${first} ${first === 1 ? "call is" : "calls are"} the same; then:`;
    const sides = first === longest ? [] : lanes.map((lane, side) => this.side(lane, calls[side][first]));
    this.result.replaceChildren(html("p", {}, words), html("div", { class: "places" }, ...sides));
  }

  /** The calls of a lane in the order in which it made them. @param {number} lane @returns {number[]} */
  callsOf(lane) {
    const { run } = this;
    const cells = run.byLane[lane].filter((cell) => !run.isMissing(cell));
    return cells.sort((one, other) => one - other).map((cell) => run.eventCall[run.cellEvent[cell]]);
  }

  isSame(one, other) {
    if (one === undefined || other === undefined) return false;
    return one === other || this.marks(one).every((mark, index) => mark === this.marks(other)[index]);
  }

  /** What of a call is the same on all ranks that do the same; not the peer of a message. @param {number} call */
  marks(call) {
    const { run } = this;
    const { site, tag } = run.calls;
    const isGroup = DATA.families[run.calls.family[call]] === "group";
    const fields = isGroup ? ["operation"] : ["operation", "signature", "origin"];
    const words = fields.map((field) => run.textOf(call, field));
    return [...words, ...plainGroups(run, [run.textOf(call, "group")]), site[call], tag[call]];
  }

  /** @param {number} lane @param {number|undefined} call */
  side(lane, call) {
    const { run } = this;
    const info = run.lanes[lane];
    const who = html("strong", {}, laneName(info));
    if (call === undefined) {
      const end = [END_WORDS[info.end], textAt(info.text)].filter((part) => part).join(" ") || "no more calls";
      return html("figure", { class: "place" }, html("figcaption", {}, html("p", { class: "present" }, who, `: ${end}`)));
    }
    const words = [callName(run, call), run.textOf(call, "signature"), run.textOf(call, "origin")];
    if (run.hasGroups) words.push(`group "${run.textOf(call, "group")}"`);
    const what = html("p", { class: "present" }, who, ": ", html("bdi", {}, words.filter((word) => word).join(" \u00b7 ")));
    const site = run.calls.site[call];
    const source = site === null ? [] : sourceOf(run.sites[site], "");
    return html("figure", { class: "place" }, html("figcaption", {}, what), ...source);
  }
}
