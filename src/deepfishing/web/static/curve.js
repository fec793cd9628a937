// Estimated accuracy against the number of labels, with its interval, as an SVG.

const NAMESPACE = "http://www.w3.org/2000/svg";
const WIDTH = 340;
const HEIGHT = 170;
const EDGE = { left: 44, right: 14, top: 8, bottom: 26 };
const TICKS = [0, 25, 50, 75, 100];
const ROUND = [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000];

function shape(tag, attributes, text = "") {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

// `points` are {labels, accuracy, interval}; the number of labels on a logarithmic axis.
export function drawCurve(svg, points) {
  const first = Math.log(points[0].labels);
  const last = Math.log(points.at(-1).labels);
  const width = WIDTH - EDGE.left - EDGE.right;
  const height = HEIGHT - EDGE.top - EDGE.bottom;
  const x = (labels) => EDGE.left + (last > first ? ((Math.log(labels) - first) / (last - first)) * width : width / 2);
  const y = (percent) => EDGE.top + (1 - percent / 100) * height;
  const path = (values) => values.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" ");
  const low = points.map((one) => [x(one.labels), y(one.interval[0])]);
  const high = points.map((one) => [x(one.labels), y(one.interval[1])]);
  const end = points.at(-1).labels;
  const marks = [...ROUND.filter((n) => n >= points[0].labels && x(end) - x(n) > 36), end];
  svg.replaceChildren(
    ...TICKS.map((percent) => shape("line", { class: "rule", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(percent), y2: y(percent) })),
    ...TICKS.map((percent) => shape("text", { x: EDGE.left - 5, y: y(percent) + 4, "text-anchor": "end" }, `${percent} %`)),
    ...marks.map((n) => shape("text", { x: x(n), y: HEIGHT - 9, "text-anchor": "middle" }, n.toLocaleString())),
    shape("polygon", { class: "band", points: path([...low, ...high.reverse()]) }),
    shape("polyline", { class: "line", points: path(points.map((one) => [x(one.labels), y(one.accuracy)])) }),
    ...points.map((one) => shape("circle", { class: "dot", r: 3, cx: x(one.labels), cy: y(one.accuracy) })),
  );
}
