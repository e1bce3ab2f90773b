// What stands around the lanes: operations above, ranks on the left, and on the right how each lane ended.

/** How far to the right a letter of a head leads, which leans. */
const HEAD_ADVANCE = 4;

class Margins {
  /** @param {Drawing} drawing */
  constructor(drawing) {
    this.drawing = drawing;
    this.run = drawing.run;
    this.geometry = drawing.geometry;
    this.progress = drawing.progress;
  }

  /** What each column's calls are, above it. The last heads lean out over the ends of the lanes. */
  heads() {
    const { geometry, drawing, run } = this;
    const lanes = geometry.columnWidth < 15 ? [] : drawing.lanes;
    const [left, right] = [geometry.label, geometry.edge];
    const cells = lanes.flatMap((lane) => drawing.inView(lane).filter((cell) => drawing.isShown(cell)));
    const found = [...run.callsByColumn(cells)]
      .map(([column, calls]) => [column, headText(run, calls)])
      .filter(([column, text]) => text && left <= geometry.x(column) && geometry.x(column) <= right)
      .map(([column, text]) => this.head(column, text));
    return svg("g", { "clip-path": `url(#${drawing.name}-heads)` }, ...found);
  }

  head(column, text) {
    const { geometry } = this;
    const x = geometry.x(column) + 3;
    const y = geometry.head - 12;
    const room = Math.floor((geometry.width - x) / HEAD_ADVANCE);
    const shown = shortened(text, Math.max(6, Math.min(geometry.headLetters, room)));
    const title = shown === text ? [] : [svg("title", {}, text)];
    return svg("text", { class: "head", x, y, transform: `rotate(-48 ${x} ${y})` }, shown, ...title);
  }

  labels() {
    return [...this.bands(), ...this.drawing.lanes.map((lane) => this.laneLabel(lane))];
  }

  /** The heads of the bands of lanes, each with a line above it. */
  bands() {
    const { geometry } = this;
    return [...geometry.headOf].flatMap(([lane, name]) => {
      const top = geometry.y(lane) - geometry.laneHeight / 2 - BAND_HEIGHT;
      return [
        svg("path", { class: "band", d: `M0 ${top + 2}H${geometry.width}` }),
        svg("text", { class: "band-name", x: 8, y: top + 15 }, shortened(name, 60)),
      ];
    });
  }

  laneLabel(lane) {
    const { run, geometry, progress } = this;
    const info = run.lanes[lane];
    const isRunning = lane === progress.running;
    const name = geometry.labelOf(lane);
    const longest = Math.floor((geometry.label - geometry.labelRoom) / LABEL_LETTER);
    const classes = ["label", info.culprit ? "culprit" : "", isRunning ? "running" : "", info.thread ? "thread" : ""];
    const sign = isRunning ? "\u25b6" : info.culprit ? "!" : "";
    const y = geometry.y(lane) + 4;
    const label = svg(
      "text",
      { class: classes.join(" ").trim(), x: geometry.isNarrow ? 16 : 20, y },
      shortened(name, longest),
      svg("title", {}, info.thread ? name : laneName(info)),
    );
    const isShared = spansCount(info.ranks) > 1;
    const button = isShared && { "data-ranks": lane, tabindex: 0, role: "button", "aria-label": `${name}: which` };
    const size = geometry.laneHeight < 16 ? " small" : "";
    return svg(
      "g",
      { class: `${size}${isShared ? " shared-lane" : ""}`.trim(), ...button },
      svg("text", { class: `sign ${isRunning ? "running" : "culprit"}`, x: 4, y }, sign),
      label,
    );
  }

  /** How each lane ended, or what it does now. */
  ends() {
    const { run, geometry, progress } = this;
    return this.drawing.lanes.map((lane) => {
      const state = progress.state[lane];
      if (!state) return svg("g");
      const isBlamed = this.isBlamed(lane, state);
      const text = `${isBlamed && state === "returned" ? "!" : END_SIGNS[state]} ${END_WORDS[state]}`;
      const size = geometry.laneHeight < 16 ? " small" : "";
      const title = svg("title", {}, textAt(run.lanes[lane].text) || END_WORDS[state]);
      const kind = progress.isEnd ? `${state}${isBlamed ? " culprit" : ""}` : `${state} so-far`;
      return svg("text", { class: `end ${kind}${size}`, x: geometry.edge + 8, y: geometry.y(lane) + 4 }, text, title);
    });
  }

  /** True if how a lane ended is what went wrong: of a rank that returned or was stopped, only where it is missing. */
  isBlamed(lane, state) {
    const { run, progress } = this;
    const isMissed = run.byLane[lane].some((cell) => run.isMissing(cell));
    return progress.isEnd && run.lanes[lane].culprit && (isMissed || state === "waiting" || state === "raised");
  }
}
