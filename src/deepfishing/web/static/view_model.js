// The classifier of the labels: train it, see how right it is, choose thresholds, try photos, take it
// along.

import * as api from "./api.js";
import { element, picture, shortName } from "./card.js";
import { failed, notice, toast } from "./messages.js";
import { filterOf, isFiltered, read } from "./state.js";
import { follow } from "./work.js";

export const style = "model.css";
export const keys = [["T", "train"], ["/", "filter"]];

const TRAIN = "train";
const ONNX = "onnx";
const MOST_TRIED = 12; // photos on the screen
const MOST_BYTES = 20 * 2 ** 20;
const SHOWN_CLASSES = 4;

const $ = (selector) => document.querySelector(selector);
const percent = (value) => `${value.toFixed(1)} %`;

let context = null;
let about = null;
let open = ""; // the class whose curve is shown

export async function mount(place, given) {
  context = given;
  document.title = `Model – ${context.store.name}`;
  open = "";
  $("#model-train").addEventListener("click", train);
  $("#model-pick").addEventListener("click", () => $("#model-file").click());
  $("#model-file").addEventListener("change", (event) => {
    tryAll([...event.target.files]);
    event.target.value = "";
  });
  $("#make-onnx").addEventListener("click", makeOnnx);
  await load();
  if (about?.job?.state === "running") watchTraining();
  if (about?.onnx_job?.state === "running") watchOnnx();
}

export function update() {
  if (about?.model) sorted();
}

// ---- training ----

async function load() {
  try {
    about = await api.get("/api/model", context.signal);
  } catch (error) {
    if (error.name !== "AbortError") failed($("#model-labels"), error, load);
    return;
  }
  if (context.signal.aborted) return;
  describeLabels();
  $("#model-found").hidden = !about.model;
  if (!about.model) return;
  describeModel();
  listClasses();
  await sorted();
}

function describeLabels() {
  const used = about.labels.filter((one) => one.images);
  const line = $("#model-labels");
  const enough = used.length > 1;
  $("#model-train").disabled = !enough;
  if (about.problem) notice(about.problem);
  const said = `${about.labelled.toLocaleString()} photos are labelled, with ${used.length} ${used.length === 1 ? "class" : "classes"}. `;
  line.replaceChildren(said);
  if (!enough) line.append("A classifier needs two classes. ", element("a", { href: "#view=label", textContent: "Label some photos" }), ".");
  else if (about.model) line.append(about.model.changed_labels ? `${about.model.changed_labels.toLocaleString()} labels have changed since the model was trained.` : "No label has changed since the model was trained.");
}

async function train() {
  if ($("#model-train").disabled) return;
  try {
    await api.post("/api/model/train", { recipe: $("#model-recipe").value });
  } catch (error) {
    notice(error.message);
    return;
  }
  watchTraining();
}

function watchTraining() {
  $("#model-train").disabled = true;
  follow($("#model-work"), TRAIN, "Training", {
    signal: context.signal,
    again: train,
    async ended(job) {
      await load();
      if (job.state === "done") toast("The model is trained.");
      if (job.state === "cancelled") toast("The training was cancelled; the model before stays.");
    },
  });
}

// ---- figures ----

function describeModel() {
  const { figures, recipe, network, photos, trained, chosen, unseen } = about.model;
  const place = $("#model-figure");
  if (figures.accuracy === undefined) place.replaceChildren(element("span", { textContent: `Accuracy: ${figures.why}.` }));
  else if (figures.expected !== undefined) showFigure(place, figures.expected, figures.expected_interval, `of the ${figures.others.toLocaleString()} photos without a label are expected to be right`, 0);
  else showFigure(place, (unseen ?? figures).accuracy, (unseen ?? figures).interval, "right", 1);
  const how = [`${recipe} of ${network}, trained on ${photos.toLocaleString()} photos, ${new Date(trained).toLocaleString()}.`];
  if (figures.accuracy !== undefined) {
    how.push(`Of ${figures.photos.toLocaleString()} labelled photos ${figures.right.toLocaleString()} are right, each held out with its copies and similar scenes (${figures.groups.toLocaleString()} groups).`);
    if (figures.expected !== undefined) how.push("The figure above counts each of them for the photos that are like it, since photos that were labelled first are often harder than the others.");
    if (unseen) how.push(`The features were chosen on the same photos; of photos that the choice has not seen, ${percent(unseen.accuracy)} are right.`);
    else if (chosen) how.push("The features were chosen on the same photos, which makes the figure slightly too good.");
  }
  const unused = about.labelled - photos - about.model.changed_labels;
  if (unused > 0) how.push(`${unused.toLocaleString()} labelled photos are not used, such as those in a folder called test.`);
  $("#model-how").textContent = how.join(" ");
  $("#download-onnx").hidden = !about.has_onnx;
}

function showFigure(place, value, [low, high], words, digits) {
  const number = (one) => `${one.toFixed(digits)} %`;
  const about = digits ? "" : "about ";
  place.replaceChildren(element("b", { textContent: `${about}${number(value)}` }), element("span", { textContent: `${words}, between ${number(low)} and ${number(high)} (95 %)` }));
}

function listClasses() {
  $("#model-classes tbody").replaceChildren(...about.model.classes.map(classRow));
  if (open) showCurve(open);
}

function classRow(one) {
  const name = element("button", { type: "button", className: "plain", textContent: one.name, onclick: () => showCurve(one.name), disabled: !one.point });
  name.setAttribute("aria-label", `Precision and recall of ${one.name} at every threshold`);
  const choice = element("input", { type: "range", min: 0, max: 1, step: 0.01, value: one.threshold, disabled: !one.trained });
  choice.setAttribute("aria-label", `Threshold of ${one.name}`);
  const isUsual = !about.model.several && !one.chosen;
  const value = element("output", { textContent: isUsual ? "–" : one.threshold.toFixed(2), title: isUsual ? "none chosen: photos go to their most probable class" : "" });
  choice.addEventListener("input", () => {
    value.textContent = Number(choice.value).toFixed(2);
  });
  choice.addEventListener("change", () => setThreshold(one.name, Number(choice.value)));
  const figure = one.point;
  const precision = figure && figure.precision !== null ? `${percent(figure.precision)} (${figure.right}/${figure.above})` : "–";
  const row = element(
    "tr",
    {},
    element("th", { scope: "row" }, name),
    element("td", { textContent: one.photos.toLocaleString() }),
    element("td", { textContent: one.ap === null ? "–" : one.ap.toFixed(1), title: one.why }),
    element("td", { className: "model-threshold" }, choice, value),
    element("td", { textContent: precision }),
    element("td", { textContent: figure ? percent(figure.recall) : "–" }),
  );
  row.dataset.class = one.name;
  return row;
}

async function setThreshold(name, value) {
  try {
    await api.post("/api/model/threshold", { name, value });
    const focus = document.activeElement?.closest("tr")?.dataset.class;
    await load();
    if (focus) document.querySelector(`tr[data-class="${CSS.escape(focus)}"] input`)?.focus();
  } catch (error) {
    notice(error.message);
  }
}

// Precision and recall against the threshold, as a drawing whose numbers are read by a slider.
async function showCurve(name) {
  open = name;
  const place = $("#model-curve");
  let points;
  try {
    ({ points } = await api.get(`/api/model/curve?${new URLSearchParams({ name })}`));
  } catch (error) {
    notice(error.message);
    return;
  }
  if (open !== name || context.signal.aborted || !points.length) return;
  const threshold = about.model.classes.find((one) => one.name === name).threshold;
  const [wide, high, edge] = [360, 170, 26];
  const x = (value) => edge + value * (wide - edge - 8);
  const y = (share) => high - edge - (share / 100) * (high - edge - 10);
  const line = (key) => points.filter((point) => point[key] !== null).map((point, at) => `${at ? "L" : "M"}${x(point.threshold).toFixed(1)} ${y(point[key]).toFixed(1)}`).join("");
  const svg = svgOf("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `Precision and recall of ${name} against the threshold` });
  for (const share of [0, 50, 100]) {
    svg.append(svgOf("line", { x1: edge, x2: wide - 8, y1: y(share), y2: y(share), class: "rule" }), svgOf("text", { x: edge - 4, y: y(share) + 4, "text-anchor": "end" }, String(share)));
  }
  for (const value of [0, 0.5, 1]) svg.append(svgOf("text", { x: x(value), y: high - 6, "text-anchor": "middle" }, value.toFixed(1)));
  svg.append(svgOf("line", { x1: x(threshold), x2: x(threshold), y1: y(0), y2: y(100), class: "now" }));
  svg.append(svgOf("path", { d: line("precision"), class: "precision" }), svgOf("path", { d: line("recall"), class: "recall" }));
  const title = element("p", {}, element("b", { textContent: name }), " at every threshold: ", element("span", { className: "precision", textContent: "precision" }), " and ", element("span", { className: "recall", textContent: "recall" }), ", percent of held-out photos");
  place.replaceChildren(title, svg);
  place.hidden = false;
}

function svgOf(tag, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

// ---- photos to try ----

// Whether the view takes photos that were dropped.
export function dropped(files) {
  if (!about?.model) return false;
  tryAll([...files]);
  return true;
}

async function tryAll(files) {
  for (const file of files.slice(0, MOST_TRIED)) {
    if (context.signal.aborted) return;
    await tryOne(file);
  }
  if (files.length > MOST_TRIED) notice(`The first ${MOST_TRIED} photos are tried; deepfish predict takes whole folders.`);
}

async function tryOne(file) {
  if (file.size > MOST_BYTES) {
    notice(`A photo must have at most 20 MB, ${file.name} has ${Math.round(file.size / 2 ** 20)} MB.`);
    return;
  }
  const said = element("div", { className: "model-said soft", textContent: "Looking …" });
  const item = element("li", {}, element("span", { className: "shot" }, picture(URL.createObjectURL(file), file.name)), said);
  $("#model-tried").prepend(item);
  while ($("#model-tried").children.length > MOST_TRIED) $("#model-tried").lastChild.remove();
  try {
    const { upload } = await api.upload(file);
    const found = await api.post("/api/model/try", { upload });
    const bars = found.classes.slice(0, SHOWN_CLASSES).map(classBar);
    said.classList.remove("soft");
    said.replaceChildren(element("b", { textContent: shortName(file.name) }), element("p", {}, "goes to ", element("b", { className: "folder", textContent: found.folders.join(", ") })), ...bars);
  } catch (error) {
    failed(said, error);
  }
}

function classBar({ name, probability }) {
  const fill = element("i");
  fill.style.width = `${100 * probability}%`;
  return element("p", { className: "bar" }, element("em", { textContent: name }), element("span", { className: "track" }, fill), element("b", { textContent: `${Math.round(100 * probability)} %` }));
}

// ---- sorted, and files ----

async function sorted() {
  const state = read();
  const query = api.filterQuery(filterOf(state));
  $("#download-sorted").href = `/api/model/download?${api.filterQuery(filterOf(state), { what: "sorted" })}`;
  $("#model-sort-about").textContent = `${isFiltered(state) ? "Photos that pass the filter" : "All photos"}, by the class that they are taken for and its threshold. The model has seen those that are labelled.`;
  try {
    const { folders } = await api.get(`/api/model/folders?${query}`, context.signal);
    $("#model-folders").replaceChildren(...folders.map(({ name, photos }) => element("li", {}, element("span", { textContent: `${name}/` }), element("b", { textContent: photos.toLocaleString() }))));
  } catch (error) {
    if (error.name !== "AbortError") notice(error.message);
  }
}

async function makeOnnx() {
  try {
    await api.post("/api/model/onnx", {});
  } catch (error) {
    notice(error.message);
    return;
  }
  watchOnnx();
}

function watchOnnx() {
  $("#make-onnx").disabled = true;
  follow($("#onnx-work"), ONNX, "Writing model.onnx", {
    signal: context.signal,
    again: makeOnnx,
    async ended() {
      $("#make-onnx").disabled = false;
      await load();
    },
  });
}

// Whether a key was used.
export function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.key.toLowerCase() !== "t") return false;
  train();
  return true;
}
