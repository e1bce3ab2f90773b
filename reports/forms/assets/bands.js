// Lanes of a device mesh, in bands: those that share all coordinates but the last stand under one head.

const BAND_HEIGHT = 20;

/** "pp 0, dp 1" of "pp 0, dp 1, tp 0". @param {string} coordinates */
function bandName(coordinates) {
  return coordinates.split(", ").slice(0, -1).join(", ");
}

/**
 * The name of the band of each lane; null if the lanes have none, or each would be alone in its own.
 * @param {Lane[]} lanes @returns {string[]|null}
 */
function bandsOf(lanes) {
  if (lanes.some((lane) => spansCount(lane.ranks) > 1)) return null;
  const places = new Map(lanes.map((lane) => [lane.rank, ""]));
  for (const lane of lanes) if (lane.coordinates) places.set(lane.rank, lane.coordinates);
  const names = lanes.map((lane) => bandName(places.get(lane.rank)));
  const isTold = names.every((name) => name) && new Set(names).size <= lanes.length / 2;
  return isTold ? names : null;
}
