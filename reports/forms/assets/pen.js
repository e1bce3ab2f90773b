// SVG made of elements, never of text: whatever a name holds, it stays a name.

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {string} name @param {Record<string, string|number>} attributes @param {(Node|string)[]} children
 * @returns {SVGElement}
 */
function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

/**
 * @param {string} name @param {Record<string, string>} attributes @param {(Node|string)[]} children
 * @returns {HTMLElement}
 */
function html(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Shapes of the families, so that colour is not the only sign: circle, diamond, post, triangle, square. */
const SHAPES = {
  collective: (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  rooted: (x, y, r) => `M${x} ${y - 1.2 * r}l${1.2 * r} ${1.2 * r}l${-1.2 * r} ${1.2 * r}l${-1.2 * r} ${-1.2 * r}z`,
  barrier: (x, y, r) => `M${x - 0.5 * r} ${y - 1.25 * r}h${r}v${2.5 * r}h${-r}z`,
  message: (x, y, r) => `M${x - 0.8 * r} ${y - r}l${1.9 * r} ${r}l${-1.9 * r} ${r}z`,
  received: (x, y, r) => `M${x + 0.8 * r} ${y - r}l${-1.9 * r} ${r}l${1.9 * r} ${r}z`,
  group: (x, y, r) => `M${x - 0.85 * r} ${y - 0.85 * r}h${1.7 * r}v${1.7 * r}h${-1.7 * r}z`,
};

const MARK_NAMES = { s: "step", k: "store", z: "sleep", f: "fault", n: "note", r: "return", x: "raise" };

/** @param {string} kind @param {number} x @param {number} y @param {number} radius that of a call */
function markPath(kind, x, y, radius) {
  const r = Math.max(1.5, radius * 0.45);
  if (kind === "r") return `M${x} ${y - 2 * r}v${4 * r}`;
  if (kind === "x" || kind === "f")
    return `M${x - 1.6 * r} ${y - 1.6 * r}l${3.2 * r} ${3.2 * r}m0 ${-3.2 * r}l${-3.2 * r} ${3.2 * r}`;
  if (kind === "n") return `M${x} ${y}v${-2.6 * r}h${2.2 * r}v${1.3 * r}h${-2.2 * r}`;
  if (kind === "s") return `M${x} ${y - 1.5 * r}v${3 * r}`;
  return SHAPES.collective(x, y, r * 0.8);
}

/** The pattern of a wait. @param {string} name */
function hatching(name) {
  const line = svg("path", { d: "M-2 2l4 -4M0 8l8 -8M6 10l4 -4", class: "hatch" });
  return svg("pattern", { id: `${name}-hatching`, width: 8, height: 8, patternUnits: "userSpaceOnUse" }, line);
}

/** Gathers many shapes into few elements: a path for each class. */
class Pen {
  constructor() {
    /** @type {Map<string, string[]>} */
    this.paths = new Map();
  }

  /** @param {string} classes @param {string} path */
  draw(classes, path) {
    const found = this.paths.get(classes);
    if (found) found.push(path);
    else this.paths.set(classes, [path]);
  }

  /** @returns {SVGElement[]} */
  elements() {
    return [...this.paths].map(([classes, parts]) => svg("path", { class: classes, d: parts.join("") }));
  }
}

/** @param {number} value */
function tenths(value) {
  return Math.round(value * 10) / 10;
}
