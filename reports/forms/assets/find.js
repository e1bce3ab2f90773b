// Search over what calls are: their operation, group, purpose, parameters, and line. Enter goes to the next one found.

class Find {
  /** @param {HTMLElement} section @param {Lanes} lanes */
  constructor(section, lanes) {
    this.lanes = lanes;
    this.run = lanes.run;
    this.input = section.querySelector(".find");
    this.note = section.querySelector(".find-note");
    /** @type {number[]} cells whose calls hold the words, from left to right */
    this.found = [];
    this.input.addEventListener("input", () => this.search());
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1);
    });
  }

  search() {
    const { run } = this;
    const words = this.input.value.trim().toLowerCase().split(/\s+/).filter((word) => word);
    const holds = new Map();
    const isOne = (call) => {
      if (!holds.has(call)) holds.set(call, words.every((word) => this.textOf(call).includes(word)));
      return holds.get(call);
    };
    const cells = words.length ? run.cellSlot.map((_, cell) => cell) : [];
    this.found = cells
      .filter((cell) => !run.isMissing(cell) && isOne(run.callAt(cell)))
      .sort((one, other) => run.cellColumn[one] - run.cellColumn[other] || run.cellLane[one] - run.cellLane[other]);
    this.input.setAttribute("aria-invalid", String(words.length > 0 && !this.found.length));
    this.note.textContent = words.length ? `${this.found.length.toLocaleString("en")} found` : "";
  }

  /** All that is said of a call, in small letters. @param {number} call */
  textOf(call) {
    const { run } = this;
    const fields = ["operation", "group", "signature", "origin", "purpose"].map((field) => run.textOf(call, field));
    const site = run.calls.site[call];
    const names = run.calls.parameters[call].map(textAt);
    return [...fields, `#${run.calls.sequence[call]}`, ...names, site === null ? "" : run.sites[site].short]
      .join(" ")
      .toLowerCase();
  }

  /** @param {1|-1} direction */
  next(direction) {
    const cells = this.found.filter((cell) => this.lanes.isShown(cell));
    if (!cells.length) return;
    const at = cells.indexOf(this.lanes.cursor);
    const index = at < 0 ? (direction > 0 ? 0 : cells.length - 1) : (at + direction + cells.length) % cells.length;
    this.lanes.moveTo(cells[index]);
    this.note.textContent = `${index + 1} of ${cells.length.toLocaleString("en")}`;
    this.input.focus({ preventScroll: true });
  }
}
