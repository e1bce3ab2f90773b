// What stands around the lanes: operations above, ranks on the left, and on the right how each lane ended.

class Margins {
  /** @param {Drawing} drawing */
  constructor(drawing) {
    this.drawing = drawing;
    this.run = drawing.run;
    this.geometry = drawing.geometry;
    this.progress = drawing.progress;
  }

  /** The operation above each column whose calls agree in it. */
  heads() {
    const { geometry, drawing } = this;
    const names = new Map();
    for (const lane of geometry.columnWidth < 15 ? [] : drawing.lanes) {
      for (const place of drawing.inView(lane)) this.nameColumn(names, place);
    }
    const found = [...names].filter(([, call]) => call >= 0).map(([column, call]) => this.head(column, call));
    return svg("g", { "clip-path": `url(#${drawing.name}-columns)` }, ...found);
  }

  nameColumn(names, place) {
    const { run } = this;
    if (run.isMissing(place) || !this.drawing.isShown(place)) return;
    const column = run.placeColumn[place];
    const call = run.callAt(place);
    const known = names.get(column);
    const isOther = known !== undefined && known !== call && run.calls.operation[known] !== run.calls.operation[call];
    names.set(column, isOther ? -1 : call);
  }

  head(column, call) {
    const x = this.geometry.x(column) + 3;
    const y = HEAD - 12;
    const text = shortened(this.run.textOf(call, "operation"), 14);
    return svg("text", { class: "head", x, y, transform: `rotate(-48 ${x} ${y})` }, text);
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
