// All photos in two dimensions: what is alike lies close. A shape drawn around some of them becomes the
// filter of all views.

import * as api from "./api.js";
import { element, picture, shortName } from "./card.js";
import { MapCanvas } from "./map_canvas.js";
import { failed, notice, toast } from "./messages.js";
import { filterOf, go, isFiltered, read } from "./state.js";
import { follow } from "./work.js";

export const style = "map.css";
export const keys = [
  ["← ↑ ↓ →", "move"],
  ["+ −", "zoom"],
  ["0", "everything"],
  ["L", "lasso"],
  ["R", "rectangle"],
  ["Enter", "select what is on the screen"],
  ["C", "colours"],
];

const JOB = "map";
const COLOURS = { label: "label", prediction: "prediction", folder: "folder", region: "region", doubt: "doubt" };
const TOOLS = { pan: "Move", lasso: "Lasso", rectangle: "Rectangle" };
const STEP = 60; // pixels that an arrow key moves
const ZOOM = 1.3; // of a key or a button
const FINEST = 4; // pixels between corners of a lasso
const MOST_CORNERS = 1500;
const OTHERS = 25; // code of classes without a colour of their own

const $ = (selector) => document.querySelector(selector);

let context = null;
let chart = null; // MapCanvas
let about = null; // of the server
let regions = [];
let highlighted = new Set(); // codes of the legend; empty for all
let passing = null; // bits of points, or null
let tool = "pan";
let drawing = null; // corners in pixels
let asked = 0;
let framed = 0;

// ---- start ----

export async function mount(place, given) {
  context = given;
  document.title = `Map – ${context.store.name}`;
  highlighted = new Set();
  passing = null;
  drawing = null;
  makeTools();
  chart = new MapCanvas($("#map"), { renderer: new URLSearchParams(location.search).get("renderer") ?? "webgl2" });
  listen();
  await load();
}

export function unmount() {
  cancelAnimationFrame(framed);
  framed = 0;
  chart = null;
}

async function load() {
  try {
    about = await api.get("/api/map");
  } catch (error) {
    failed($("#map-about"), error, load);
    return;
  }
  if (context.signal.aborted) return;
  const isRunning = about.job?.state === "running";
  if (isRunning || (!about.placed && !about.job)) {
    await make(false, isRunning);
    return;
  }
  await show();
}

async function make(again, isRunning = false) {
  try {
    if (!isRunning) await api.post("/api/map/make", { again });
  } catch (error) {
    notice(error.message);
    return;
  }
  $("#map-about").textContent = about.placed ? "" : `A map of ${about.photos.toLocaleString()} photos is made once; then it is kept beside the store. The other views can be used meanwhile.`;
  $("#map-stage").classList.toggle("empty", !about.placed);
  follow($("#map-work"), JOB, "Making the map", {
    signal: context.signal,
    again: () => make(again),
    async ended() {
      about = await api.get("/api/map").catch(() => about);
      if (!context.signal.aborted) await show();
    },
  });
  if (about.placed) await show();
}

async function show() {
  const isEmpty = !about.placed;
  $("#map-stage").classList.toggle("empty", isEmpty);
  $("#map-bar").hidden = isEmpty; // there is nothing to move or to colour
  describe();
  if (isEmpty) return;
  const [points, found] = await Promise.all([api.get("/api/map/points"), api.get("/api/map/regions")]);
  if (context.signal.aborted) return;
  regions = found.regions;
  const bytes = bytesOf(points.places);
  chart.setPoints(new Uint16Array(bytes.buffer, 0, bytes.length / 2));
  fillColours();
  listRegions();
  await colour();
  await filter(read());
}

function describe() {
  const line = $("#map-about");
  if (!about.placed) {
    line.replaceChildren("There is no map yet. ", element("button", { type: "button", textContent: "Make the map", onclick: () => make(false) }));
    return;
  }
  const count = (n) => n.toLocaleString();
  const said = [];
  if (about.shown < about.placed) said.push(`An even sample of ${count(about.shown)} of ${count(about.placed)} photos is drawn; a selection takes all of them.`);
  if (about.laid_out < about.contents) said.push(`The layout is of ${count(about.laid_out)} photos; the others lie beside the photos that they are like.`);
  line.replaceChildren(said.join(" "));
  const missing = about.photos - about.placed;
  if (missing > 0) line.append(` ${count(missing)} photos are new. `, element("button", { type: "button", textContent: "Place them", onclick: () => make(false) }));
}

const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

// ---- colours ----

function fillColours() {
  const choice = $("#map-colours");
  const before = choice.value;
  choice.replaceChildren(...about.colours.map((name) => element("option", { value: name, textContent: COLOURS[name] })));
  const usual = about.colours.includes("prediction") ? "prediction" : "label";
  choice.value = about.colours.includes(before) ? before : context.store.labels.length ? "label" : usual === "label" ? "region" : usual;
}

// Colours that are far apart for numbers that are close, legible on light and dark.
function tone(number) {
  const hue = (number * 137.508 + 20) % 360;
  return hslToRgb(hue, 0.62, number % 2 ? 0.56 : 0.46);
}

function hslToRgb(hue, saturation, lightness) {
  const reach = saturation * Math.min(lightness, 1 - lightness);
  const part = (offset) => {
    const k = (offset + hue / 30) % 12;
    return Math.round(255 * (lightness - reach * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [part(0), part(8), part(4)];
}

function paletteOf(found) {
  const palette = new Uint8Array(256 * 4);
  for (let code = 0; code < 256; code += 1) {
    let [red, green, blue, alpha] = [138, 146, 156, 150];
    if (found.scale) {
      const share = code / 255;
      [red, green, blue] = hslToRgb(215 - 190 * share, 0.75, 0.5);
      alpha = 90 + 165 * share;
    } else if (code >= 1 && code < OTHERS) {
      [red, green, blue] = tone(code - 1);
      alpha = 235;
    }
    palette.set([red, green, blue, alpha], 4 * code);
  }
  return palette;
}

async function colour() {
  const by = $("#map-colours").value;
  let found;
  try {
    found = await api.get(`/api/map/colours?by=${by}`);
  } catch (error) {
    notice(error.message);
    return;
  }
  if (context.signal.aborted) return;
  highlighted = new Set();
  const palette = paletteOf(found);
  chart.setCodes(bytesOf(found.codes), palette);
  legend(found, palette);
  dim();
}

function legend(found, palette) {
  const swatch = (code) => {
    const dot = element("i", { className: "swatch" });
    dot.style.background = `rgb(${palette[4 * code]} ${palette[4 * code + 1]} ${palette[4 * code + 2]})`;
    return dot;
  };
  const list = $("#map-legend");
  if (found.scale) {
    const scale = element("li", { className: "map-scale" }, element("span", { textContent: found.scale[0] }));
    for (let code = 0; code < 256; code += 32) scale.append(swatch(code));
    scale.append(element("span", { textContent: found.scale[1] }));
    list.replaceChildren(scale);
    return;
  }
  const lines = found.names.map((one, at) => [at + 1, one.name, one.photos]);
  if (found.others) lines.push([OTHERS, "others", found.others]);
  if (found.none) lines.push([0, $("#map-colours").value === "label" ? "not labelled" : "none", found.none]);
  list.replaceChildren(
    ...lines.map(([code, name, photos]) => {
      const button = element("button", { type: "button", onclick: () => highlight(code, button) }, swatch(code), element("span", { textContent: name }), element("small", { className: "soft", textContent: photos.toLocaleString() }));
      button.setAttribute("aria-pressed", "false");
      return element("li", {}, button);
    }),
  );
}

function highlight(code, button) {
  if (highlighted.has(code)) highlighted.delete(code);
  else highlighted.add(code);
  button.setAttribute("aria-pressed", String(highlighted.has(code)));
  dim();
}

// Points that do not pass the filter, or are not highlighted, are dim.
function dim() {
  const dims = new Uint8Array(chart.n);
  for (let i = 0; i < chart.n; i += 1) {
    const isOut = (passing && !((passing[i >> 3] >> (i & 7)) & 1)) || (highlighted.size && !highlighted.has(chart.codes[i]));
    dims[i] = isOut ? 1 : 0;
  }
  chart.setDims(dims);
  redraw();
}

// ---- the filter ----

export async function update(state) {
  if (chart?.n) await filter(state);
}

async function filter(state) {
  const mine = ++asked;
  let found;
  try {
    found = await api.get(`/api/map/passing?${api.filterQuery(filterOf(state))}`, context.signal);
  } catch (error) {
    if (error.name !== "AbortError") notice(error.message);
    return;
  }
  if (mine !== asked || context.signal.aborted) return;
  passing = found.passing === null ? null : bytesOf(found.passing);
  dim();
  const label = `Map of ${about.placed.toLocaleString()} photos${isFiltered(state) ? `, ${found.images.toLocaleString()} pass the filter` : ""}. Arrow keys move, plus and minus zoom, Enter selects what is on the screen.`;
  $("#map").setAttribute("role", "application");
  $("#map").setAttribute("aria-label", label);
  $("#map").dataset.passing = String(found.images);
}

async function select(corners) {
  const inside = corners.map(([left, top]) => chart.toPlace(left, top));
  const middle = [0, 1].map((axis) => inside.reduce((sum, corner) => sum + corner[axis], 0) / inside.length);
  const near = nearestRegion(middle);
  try {
    const found = await api.post("/api/map/select", { corners: inside, name: near ? `on the map, near ${near}` : "on the map" });
    if (!found.selection) {
      toast("No photo is inside.");
      return;
    }
    go({ selection: found.selection });
    toast(`${found.images.toLocaleString()} photos selected.`, ["Show them", () => go({ view: "photos", selection: found.selection })], ["Clear", () => go({ selection: "" })]);
  } catch (error) {
    notice(error.message);
  }
}

function nearestRegion([x, y]) {
  let [best, least] = ["", Infinity];
  for (const one of regions) {
    const gap = (one.x - x) ** 2 + (one.y - y) ** 2;
    if (one.photos && gap < least) [best, least] = [one.name, gap];
  }
  return best.slice(0, 100);
}

function selectScreen() {
  if (!chart.n) return;
  select([[0, 0], [chart.width, 0], [chart.width, chart.height], [0, chart.height]]);
}

// ---- regions ----

function listRegions() {
  $("#map-regions").replaceChildren(
    ...regions
      .filter((one) => one.photos)
      .map((one) => element("li", {}, element("button", { type: "button", title: "Zoom in", onclick: () => zoomTo(one) }, element("span", { textContent: one.name }), element("small", { className: "soft", textContent: one.photos.toLocaleString() })))),
  );
}

function zoomTo(region) {
  chart.camera = { x: region.x, y: region.y, zoom: 4 };
  redraw();
}

// Names on the map, the largest regions first; one that would lie on another is left out.
function placeNames() {
  const taken = [];
  const shown = [];
  for (const one of regions) {
    if (!one.photos) continue;
    const [left, bottom] = chart.toScreen(one.x, one.y);
    const top = bottom < 0 ? bottom : Math.max(14, bottom - 12);
    const text = one.name.length > 34 ? `${one.name.slice(0, 33)}…` : one.name;
    const half = 4 + text.length * 3.6;
    const isOutside = left < half || top < 12 || left > chart.width - half || top > chart.height - 12;
    if (isOutside || taken.some((other) => Math.abs(other.left - left) < other.half + half && Math.abs(other.top - top) < 22)) continue;
    taken.push({ left, top, half });
    const name = element("span", { textContent: text });
    name.style.transform = `translate(${left}px, ${top}px) translate(-50%, -50%)`;
    shown.push(name);
  }
  $("#map-names").replaceChildren(...shown);
}

// ---- drawing ----

function redraw() {
  if (framed) return;
  framed = requestAnimationFrame(() => {
    framed = 0;
    if (!chart) return;
    chart.draw();
    placeNames();
    drawShape();
  });
}

function drawShape() {
  const corners = drawing?.corners ?? [];
  const path = corners.map(([left, top], at) => `${at ? "L" : "M"}${left.toFixed(1)} ${top.toFixed(1)}`).join("");
  $("#map-shape path").setAttribute("d", path && `${path}Z`);
}

// ---- mouse, fingers, keys ----

function makeTools() {
  $(".map-tools").replaceChildren(
    ...Object.entries(TOOLS).map(([name, words]) => {
      const button = element("button", { type: "button", value: name, textContent: words, onclick: () => choose(name) });
      button.setAttribute("role", "radio");
      return button;
    }),
  );
  choose("pan");
}

function choose(name) {
  tool = name;
  for (const button of document.querySelectorAll(".map-tools button")) button.setAttribute("aria-checked", String(button.value === name));
  $("#map").dataset.tool = name;
}

function listen() {
  const canvas = $("#map");
  const fingers = new Map();
  let spread = 0;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  new ResizeObserver(() => {
    if (!chart) return;
    chart.resize();
    redraw();
  }).observe(canvas);
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, at(event));
    hideTip();
    if (fingers.size === 2) {
      drawing = null;
      spread = gapOf(fingers);
      return;
    }
    const kind = event.shiftKey && tool === "pan" ? "lasso" : tool;
    drawing = { kind, from: at(event), last: at(event), moved: 0, corners: [] };
    if (kind === "lasso") drawing.corners.push(at(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (fingers.size === 2 && fingers.has(event.pointerId)) {
      const before = middleOf(fingers);
      fingers.set(event.pointerId, at(event));
      const after = middleOf(fingers);
      const gap = gapOf(fingers);
      chart.pan(after[0] - before[0], after[1] - before[1]);
      chart.zoomAt(...after, gap / Math.max(1, spread));
      spread = gap;
      redraw();
      return;
    }
    if (!drawing) {
      if (event.pointerType !== "touch") hover(at(event), event);
      return;
    }
    move(at(event));
  });
  const end = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    const done = drawing;
    drawing = null;
    redraw();
    if (!done || event.type === "pointercancel") return;
    if (done.moved < 4) pressedAt(done.from, event);
    else if (done.kind !== "pan" && done.corners.length > 2) select(thinned(done.corners));
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    chart.zoomAt(...at(event), Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)));
    hideTip();
    redraw();
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => {
    chart.zoomAt(...at(event), 2);
    redraw();
  });
  $("#map-in").addEventListener("click", () => zoom(ZOOM));
  $("#map-out").addEventListener("click", () => zoom(1 / ZOOM));
  $("#map-whole").addEventListener("click", everything);
  $("#map-screen").addEventListener("click", selectScreen);
  $("#map-again").addEventListener("click", () => make(true));
  $("#map-colours").addEventListener("change", colour);
}

const gapOf = (fingers) => {
  const [a, b] = [...fingers.values()];
  return Math.hypot(a[0] - b[0], a[1] - b[1]);
};
const middleOf = (fingers) => {
  const [a, b] = [...fingers.values()];
  return [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
};

function move(to) {
  const [left, top] = to;
  drawing.moved += Math.abs(left - drawing.last[0]) + Math.abs(top - drawing.last[1]);
  if (drawing.kind === "pan") chart.pan(left - drawing.last[0], top - drawing.last[1]);
  else if (drawing.kind === "rectangle") drawing.corners = [drawing.from, [left, drawing.from[1]], to, [drawing.from[0], top]];
  else {
    const before = drawing.corners.at(-1);
    if (Math.hypot(left - before[0], top - before[1]) >= FINEST) drawing.corners.push(to);
  }
  drawing.last = to;
  redraw();
}

const thinned = (corners) => corners.filter((_, at) => at % Math.ceil(corners.length / MOST_CORNERS) === 0);

function zoom(factor) {
  chart.zoomAt(chart.width / 2, chart.height / 2, factor);
  redraw();
}

function everything() {
  chart.whole();
  redraw();
}

// Whether a key was used.
export function pressed(event) {
  if (!chart || event.ctrlKey || event.metaKey || event.altKey) return false;
  const isButton = event.target.closest?.("button, a, summary");
  const arrows = { ArrowLeft: [STEP, 0], ArrowRight: [-STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP] };
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (key in arrows) {
    chart.pan(...arrows[key]);
    redraw();
  } else if (key === "+" || key === "=") zoom(ZOOM);
  else if (key === "-") zoom(1 / ZOOM);
  else if (key === "0") everything();
  else if (key === "l") choose("lasso");
  else if (key === "r") choose("rectangle");
  else if (key === "p" || key === "Escape") choose("pan");
  else if (key === "c") nextColour();
  else if (key === "Enter" && !isButton) selectScreen();
  else return false;
  event.preventDefault();
  return true;
}

function nextColour() {
  const choice = $("#map-colours");
  choice.selectedIndex = (choice.selectedIndex + 1) % choice.options.length;
  colour();
}

// ---- one photo ----

let hovered = null;
let waiting = 0;
const known = new Map(); // of points

function hover([left, top], event) {
  const point = chart.nearest(left, top);
  if (point === hovered) return;
  hovered = point;
  clearTimeout(waiting);
  if (point === null) {
    hideTip();
    return;
  }
  waiting = setTimeout(() => showTip(point, event.clientX, event.clientY), known.has(point) ? 0 : 50);
}

async function photoOf(point) {
  if (!known.has(point)) known.set(point, await api.get(`/api/map/photo?point=${point}`, context.signal));
  return known.get(point);
}

async function showTip(point, left, top) {
  let photo;
  try {
    photo = await photoOf(point);
  } catch {
    return;
  }
  if (hovered !== point || context.signal.aborted) return;
  const tip = $("#map-tip");
  tip.querySelector("img").src = api.thumbnail(photo.id);
  const guess = photo.prediction ? `taken for ${photo.prediction}, ${Math.round(100 * photo.probability)} %` : "";
  tip.querySelector("span").textContent = [shortName(photo.id), photo.labels.join(", "), guess].filter(Boolean).join(" · ");
  tip.hidden = false;
  tip.style.left = `${Math.max(4, Math.min(left + 14, document.documentElement.clientWidth - 172))}px`;
  tip.style.top = `${top + 200 < innerHeight ? top + 14 : top - 190}px`;
}

function hideTip() {
  clearTimeout(waiting);
  hovered = null;
  const tip = $("#map-tip");
  if (tip) tip.hidden = true;
}

// A click asks for the photo; a finger sees it first.
async function pressedAt([left, top], event) {
  const point = chart.nearest(left, top, event.pointerType === "touch" ? 24 : 14);
  if (point === null) return;
  try {
    const photo = await photoOf(point);
    const find = () => go({ view: "photos", like: [{ id: photo.id }] });
    if (event.pointerType === "touch") {
      toast(shortName(photo.id), ["Find photos like it", find]);
      $("#toast").prepend(element("span", { className: "map-touched" }, picture(api.thumbnail(photo.id))));
    } else find();
  } catch (error) {
    notice(error.message);
  }
}
