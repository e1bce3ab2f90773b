// What stands around the lanes: operations above, ranks on the left, and on the right how each lane ended.

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
    const cells = lanes.flatMap((lane) => drawing.inView(lane).filter((cell) => drawing.isShown(cell)));
    const found = [...run.callsByColumn(cells)]
      .map(([column, calls]) => [column, headText(run, calls)])
      .filter(([column, text]) => text && geometry.x(column) <= geometry.edge)
      .map(([column, text]) => this.head(column, text));
    return svg("g", { "clip-path": `url(#${drawing.name}-heads)` }, ...found);
  }

  head(column, text) {
    const { geometry } = this;
    const x = geometry.x(column) + 3;
    const y = geometry.head - 12;
    const shown = shortened(text, geometry.headLetters);
    const title = shown === text ? [] : [svg("title", {}, text)];
    return svg("text", { class: "head", x, y, transform: `rotate(-48 ${x} ${y})` }, shown, ...title);
  }

  labels() {
    return this.drawing.lanes.map((lane) => this.laneLabel(lane));
  }

  laneLabel(lane) {
    const { run, geometry, progress } = this;
    const info = run.lanes[lane];
    const isRunning = lane === progress.running;
    const name = info.thread ? `\u2514 ${info.thread}` : laneName(info);
    const longest = Math.floor((geometry.label - 30) / LABEL_LETTER);
    const classes = ["label", info.culprit ? "culprit" : "", isRunning ? "running" : "", info.thread ? "thread" : ""];
    const sign = isRunning ? "\u25b6" : info.culprit ? "!" : "";
    const y = geometry.y(lane) + 4;
    const label = svg(
      "text",
      { class: classes.join(" ").trim(), x: 20, y },
      shortened(name, longest),
      svg("title", {}, name),
    );
    const size = geometry.laneHeight < 16 ? " small" : "";
    return svg(
      "g",
      { class: size.trim() },
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
      const text = `${END_SIGNS[state]} ${END_WORDS[state]}`;
      const size = geometry.laneHeight < 16 ? " small" : "";
      const title = svg("title", {}, textAt(run.lanes[lane].text) || END_WORDS[state]);
      const kind = progress.isEnd ? state : `${state} so-far`;
      return svg("text", { class: `end ${kind}${size}`, x: geometry.edge + 8, y: geometry.y(lane) + 4 }, text, title);
    });
  }
}
