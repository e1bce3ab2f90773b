// The page: its runs, the filters, the buttons, the theme.

/** Ranks as one writes them, such as "0-3,7"; null if it is no such text. @param {string} text */
function spansOf(text) {
  const parts = text
    .split(",")
    .map((part) => part.trim())
    .filter((part) => part);
  const spans = parts.map((part) => /^(\d+)(?:\s*-\s*(\d+))?$/.exec(part));
  if (spans.some((span) => span === null)) return null;
  return spans.map(([, first, last]) => [Number(first), Number(last ?? first)]);
}

class Filters {
  /** @param {HTMLElement} section @param {Lanes} lanes */
  constructor(section, lanes) {
    this.lanes = lanes;
    this.ranks = section.querySelector(".filter-ranks");
    this.groups = section.querySelector(".filter-groups");
    this.note = section.querySelector(".filter-note");
    for (const group of lanes.run.groups())
      this.groups.append(html("option", { value: String(group) }, shortened(textAt(group), 60)));
    this.ranks.addEventListener("input", () => this.apply());
    this.groups.addEventListener("change", () => this.apply());
  }

  apply() {
    const spans = spansOf(this.ranks.value);
    const group = this.groups.value === "" ? null : Number(this.groups.value);
    const all = this.lanes.run.lanes.map((_, lane) => lane);
    const shown = spans === null || !spans.length ? all : all.filter((lane) => this.isNamed(lane, spans));
    this.ranks.setAttribute("aria-invalid", String(spans === null || !shown.length));
    this.note.textContent = this.problem(spans, shown, all);
    this.lanes.filter(shown.length ? shown : all, group);
  }

  isNamed(lane, spans) {
    return this.lanes.run.lanes[lane].ranks.some(([first, last]) =>
      spans.some((span) => first <= span[1] && last >= span[0]),
    );
  }

  problem(spans, shown, all) {
    if (spans === null) return "expected ranks such as 0-3,7";
    if (!shown.length) return "no lane has such a rank";
    return shown.length < all.length ? `${shown.length} of ${all.length} lanes` : "";
  }
}

/** The section of one run. @param {HTMLElement} section */
function startSection(section) {
  const index = Number(section.dataset.run);
  const run = new Run(DATA.runs[index]);
  const lanes = new Lanes(section, run, `run${index}`);
  const scrubber = new Scrubber(section, lanes);
  new Filters(section, lanes);
  new Find(section, lanes);
  new Compare(section, run);
  const actions = {
    first: () => scrubber.goTo(0),
    previous: () => scrubber.goTo(scrubber.now - 1),
    next: () => scrubber.goTo(scrubber.now + 1),
    last: () => scrubber.goTo(scrubber.last),
    play: () => scrubber.toggle(),
    wider: () => lanes.zoom(ZOOM),
    narrower: () => lanes.zoom(1 / ZOOM),
    fit: () => lanes.fit(),
    fold: () => lanes.fold(!run.isFolded),
  };
  startFolding(section, run, lanes);
  for (const button of section.querySelectorAll("[data-action]"))
    button.addEventListener("click", actions[button.dataset.action]);
  const keys = {
    "+": "wider",
    "=": "wider",
    "-": "narrower",
    0: "fit",
    ",": "previous",
    ".": "next",
    "<": "first",
    ">": "last",
    p: "play",
  };
  section.addEventListener("keydown", (event) => onKey(event, lanes, (key) => actions[keys[key]]));
  lanes.followLink();
  window.addEventListener("hashchange", () => lanes.followLink());
}

/** The button that folds what is alike; there is none where nothing is. */
function startFolding(section, run, lanes) {
  const button = section.querySelector("[data-action=fold]");
  const { folds } = lanes.geometry;
  button.hidden = !folds.all.length;
  lanes.onFold = () => {
    run.isFolded = folds.closed.length > 0;
    button.setAttribute("aria-pressed", String(run.isFolded));
  };
  lanes.onFold();
}

function onKey(event, lanes, actionOf) {
  if (event.key === "Escape") return lanes.details.close();
  const isTyping = event.target.matches("input:not([type=range]), select");
  const action = actionOf(event.key);
  if (!action || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  action();
}

function toggleTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
}

/** @param {HTMLElement} button */
async function copyReplay(button) {
  const text = button.closest("p").querySelector("code");
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "copied";
  } catch {
    getSelection().selectAllChildren(text);
    button.textContent = "selected";
  }
}

function toggleHelp() {
  const help = document.querySelector(".keys");
  help.open = !help.open;
}

for (const area of document.querySelectorAll(".lanes")) startSection(area.closest("section"));
for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", () => copyReplay(button));
document.querySelector(".theme").addEventListener("click", toggleTheme);
document.addEventListener("keydown", (event) => {
  if (event.key === "?" && !event.target.matches("input:not([type=range])")) toggleHelp();
});
document.documentElement.dataset.ready = "yes";
