// Copies of one picture side by side, zoomed in step. What is set aside is on a list that can be
// downloaded; no file is ever touched.

import * as api from "./api.js";
import { element, picture, shortName } from "./card.js";
import { failed, notice, toast } from "./messages.js";
import { filterOf, isFiltered, read } from "./state.js";
import { follow } from "./work.js";

export const style = "duplicates.css";
export const keys = [
  ["← →", "copies"],
  ["↑ ↓", "groups"],
  ["A", "set aside"],
  ["K", "keep"],
  ["U", "as proposed"],
  ["D", "difference"],
  ["+ −", "zoom"],
  ["0", "whole"],
];

const JOB = "duplicates";
const PAGE = 20; // groups asked for at a time
const SHARP = 1.6; // zoom from which the full file is shown
const MOST_ZOOM = 16;
const FORMS = { tab: "table, tab-separated", nul: "paths, NUL-separated", csv: "table, CSV" };

const $ = (selector) => document.querySelector(selector);

let context = null;
let groups = [];
let total = 0;
let aside = 0;
let at = 0; // the group on the screen
let shown = 1; // its photo on the right
let camera = { x: 0.5, y: 0.5, zoom: 1 };
let isDifference = false;
let busy = false;
let step = 0;

export async function mount(place, given) {
  context = given;
  document.title = `Duplicates – ${context.store.name}`;
  groups = [];
  at = 0;
  isDifference = false;
  $("#copies-more").addEventListener("click", () => more().catch((error) => notice(error.message)));
  $("#copies-difference").addEventListener("click", toggleDifference);
  $("#copies-in").addEventListener("click", () => zoom(1.5));
  $("#copies-out").addEventListener("click", () => zoom(1 / 1.5));
  $("#copies-whole").addEventListener("click", whole);
  listen();
}

export async function update() {
  await load();
}

// ---- groups ----

async function ask(offset) {
  return api.get(`/api/duplicates?${api.filterQuery(filterOf(read()), { offset, limit: PAGE })}`, context.signal);
}

async function load() {
  const mine = ++step;
  let found;
  try {
    found = await ask(0);
  } catch (error) {
    if (error.name !== "AbortError") failed($("#copies-about"), error, load);
    return;
  }
  if (mine !== step || context.signal.aborted) return;
  take(found);
  const isRunning = found.job?.state === "running";
  if (isRunning) watch();
  describe(found, isRunning);
  at = 0;
  list();
  show(0);
}

function take(found, isMore = false) {
  groups = isMore ? [...groups, ...found.groups] : found.groups;
  total = found.total;
  aside = found.aside;
}

async function more() {
  const mine = step;
  const found = await ask(groups.length);
  if (mine !== step) return;
  take(found, true);
  list();
}

function describe(found, isRunning) {
  const line = $("#copies-about");
  const count = (n, one, several) => `${n.toLocaleString()} ${n === 1 ? one : several}`;
  const again = (words) => element("button", { type: "button", className: found.found ? "" : "primary", textContent: words, onclick: find, disabled: isRunning });
  if (!found.found) {
    line.replaceChildren("Copies are looked for among all photos and compared at full detail. No file is touched. ", again("Look for copies"));
    return;
  }
  const filtered = isFiltered(read()) ? " that pass the filter" : "";
  line.replaceChildren(total ? `${count(total, "picture is", "pictures are")} there more than once${filtered}. ` : `No copies were found${filtered}. `);
  if (found.new_photos) line.append(`${count(found.new_photos, "photo is", "photos are")} new since. `);
  line.append(again("Look again"));
  if (total) exportBar(line);
}

function exportBar(line) {
  const form = element("select", { ariaLabel: "Form of the list" }, ...Object.entries(FORMS).map(([value, words]) => element("option", { value, textContent: words })));
  const link = element("a", { className: "button", textContent: "Download the list", download: "" });
  link.id = "copies-export";
  const aim = () => {
    link.href = `/api/duplicates/export?${api.filterQuery(filterOf(read()), { form: form.value })}`;
  };
  form.addEventListener("change", aim);
  aim();
  line.append(element("span", { className: "copies-export" }, element("b", { id: "copies-count" }), form, link));
  countAside();
}

function countAside() {
  const place = $("#copies-count");
  if (place) place.textContent = `${aside.toLocaleString()} set aside`;
}

async function find() {
  try {
    await api.post("/api/duplicates/find", {});
  } catch (error) {
    notice(error.message);
    return;
  }
  watch();
}

function watch() {
  follow($("#copies-work"), JOB, "Looking for copies", { signal: context.signal, again: find, ended: load });
}

function list() {
  $("#copies-panes").hidden = !groups.length;
  $("#copies-more").hidden = groups.length >= total;
  $("#copies-groups").replaceChildren(...groups.map((group, number) => groupButton(group, number)));
  mark();
}

function groupButton(group, number) {
  const first = group.photos[0];
  const n = group.photos.length;
  const words = element("span", { textContent: `${n} photos` });
  const gone = group.photos.filter((photo) => photo.aside).length;
  const small = element("small", { className: "soft", textContent: gone ? `${gone} aside` : "all kept" });
  const button = element("button", { type: "button", onclick: () => show(number) }, element("span", { className: "thumb" }, picture(api.thumbnail(first.id))), words, small);
  button.setAttribute("aria-label", `${shortName(first.id)}, ${n} photos, ${gone} set aside`);
  return element("li", {}, button);
}

function mark() {
  [...$("#copies-groups").children].forEach((item, number) => {
    if (number === at) item.firstChild.setAttribute("aria-current", "true");
    else item.firstChild.removeAttribute("aria-current");
  });
}

// ---- one group ----

function show(number) {
  if (!groups.length) return;
  at = Math.min(Math.max(number, 0), groups.length - 1);
  shown = 1;
  whole();
  mark();
  $("#copies-groups").children[at].scrollIntoView({ block: "nearest" });
  renderGroup();
  if (at >= groups.length - 3 && groups.length < total) more().catch(() => {});
}

function renderGroup() {
  const group = groups[at];
  $("#copies-why").textContent = `Proposed to keep: ${shortName(group.photos[0].id)} (${group.why}).`;
  $("#copies-photos").replaceChildren(...group.photos.map(photoCard));
  renderStage();
}

function photoCard(photo, number) {
  const facts = `${photo.width} × ${photo.height}, ${size(photo.bytes)}`;
  const look = element("button", { type: "button", className: "shot", onclick: () => compare(number) }, picture(api.thumbnail(photo.id)));
  look.setAttribute("aria-label", `${shortName(photo.id)}, ${photo.kind || "the one to compare with"}, ${photo.aside ? "set aside" : "kept"}`);
  if (number === shown) look.setAttribute("aria-current", "true");
  const state = element("button", { type: "button", className: "state", onclick: () => decide(number, !photo.aside), textContent: photo.aside ? "Set aside" : "Kept" });
  state.setAttribute("aria-pressed", String(photo.aside));
  state.setAttribute("aria-label", `${photo.aside ? "Set aside; keep" : "Kept; set aside"} ${shortName(photo.id)}`);
  const item = element("li", { className: photo.aside ? "is-aside" : "" }, look, element("b", { className: "name", textContent: shortName(photo.id) }), element("span", { className: "soft", textContent: photo.kind || "first" }), element("span", { className: "soft", textContent: facts }), state);
  item.dataset.id = photo.id;
  return item;
}

const size = (bytes) => (bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.max(1, Math.round(bytes / 1e3))} KB`);

function compare(number) {
  const n = groups[at]?.photos.length ?? 0;
  if (!n) return;
  shown = Math.min(Math.max(number, 0), n - 1);
  renderGroup();
}

async function decide(number, toAside) {
  const photo = groups[at]?.photos[number];
  if (!photo || busy) return;
  busy = true;
  try {
    const changed = await api.post("/api/duplicates/decide", { id: photo.id, aside: toAside });
    const before = groups[at].photos.filter((one) => one.aside).length;
    aside += changed.photos.filter((one) => one.aside).length - before;
    const where = groups.findIndex((group) => group.photos[0].id === changed.photos[0].id);
    groups[where] = changed;
    $("#copies-groups").children[where].replaceWith(groupButton(changed, where));
    mark();
    countAside();
    renderGroup();
    const isAside = changed.photos[number].aside;
    toast(`${shortName(photo.id)} is ${isAside ? "set aside" : "kept"}.`);
  } catch (error) {
    notice(error.message);
  }
  busy = false;
}

// ---- side by side ----

function renderStage() {
  const [first, other] = [groups[at].photos[0], groups[at].photos[shown]];
  const wanted = camera.zoom > SHARP ? "full" : "large";
  put("#pane-keep", isDifference && shown ? differenceUrl(first, other) : api.thumbnail(first.id, wanted), first, isDifference && shown ? "what differs, four times as strong" : "");
  put("#pane-copy", api.thumbnail(other.id, wanted), other, other.kind);
  $("#copies-difference").setAttribute("aria-pressed", String(isDifference));
  $("#copies-difference").disabled = !shown;
  place();
}

const differenceUrl = (a, b) => `/api/duplicates/difference?${new URLSearchParams({ a: a.id, b: b.id })}`;

function put(selector, url, photo, words) {
  const pane = $(selector);
  const img = pane.querySelector("img");
  if (img.getAttribute("src") !== url) {
    pane.classList.remove("gone");
    img.onerror = () => pane.classList.add("gone");
    img.src = url;
  }
  img.alt = `${shortName(photo.id)} ${words}`.trim();
  const state = photo.aside ? "set aside" : "kept";
  const caption = pane.nextElementSibling;
  caption.replaceChildren(element("b", { textContent: shortName(photo.id) }), ` ${[words, state].filter(Boolean).join(", ")}`);
}

function toggleDifference() {
  isDifference = !isDifference && shown > 0;
  renderStage();
}

// Both panes show the same part of their photos.
function place() {
  for (const img of document.querySelectorAll(".copies-pane img")) {
    img.style.transform = `scale(${camera.zoom}) translate(${(0.5 - camera.x) * 100}%, ${(0.5 - camera.y) * 100}%)`;
  }
  $("#copies-scale").textContent = camera.zoom > 1 ? `${camera.zoom.toFixed(1)} times` : "";
}

function whole() {
  camera = { x: 0.5, y: 0.5, zoom: 1 };
  place();
}

function zoom(factor, x = camera.x, y = camera.y) {
  const before = camera.zoom;
  camera.zoom = Math.min(MOST_ZOOM, Math.max(1, before * factor));
  // the place below the pointer stays
  camera.x = x + (camera.x - x) * (before / camera.zoom);
  camera.y = y + (camera.y - y) * (before / camera.zoom);
  if (camera.zoom === 1) Object.assign(camera, { x: 0.5, y: 0.5 });
  const isSharp = (value) => value > SHARP;
  if (groups.length && isSharp(before) !== isSharp(camera.zoom)) renderStage();
  place();
}

function listen() {
  const stage = $("#copies-stage");
  const fingers = new Map();
  let spread = 0;
  const inside = (pane, event) => {
    const box = pane.getBoundingClientRect();
    return [
      camera.x + ((event.clientX - box.left) / box.width - 0.5) / camera.zoom,
      camera.y + ((event.clientY - box.top) / box.height - 0.5) / camera.zoom,
    ];
  };
  stage.addEventListener("wheel", (event) => {
    const pane = event.target.closest(".copies-pane");
    if (!pane) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.002), ...inside(pane, event));
  }, { passive: false });
  stage.addEventListener("pointerdown", (event) => {
    const pane = event.target.closest(".copies-pane");
    if (!pane || event.button) return;
    if (camera.zoom > 1 || event.pointerType === "touch") pane.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    if (fingers.size === 2) spread = gap(fingers);
  });
  stage.addEventListener("pointermove", (event) => {
    const from = fingers.get(event.pointerId);
    const pane = event.target.closest(".copies-pane");
    if (!from || !pane) return;
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    if (fingers.size === 2) {
      zoom(gap(fingers) / Math.max(1, spread));
      spread = gap(fingers);
      return;
    }
    if (camera.zoom === 1) return;
    const box = pane.getBoundingClientRect();
    camera.x -= (event.clientX - from[0]) / box.width / camera.zoom;
    camera.y -= (event.clientY - from[1]) / box.height / camera.zoom;
    place();
  });
  for (const kind of ["pointerup", "pointercancel"]) stage.addEventListener(kind, (event) => fingers.delete(event.pointerId));
  stage.addEventListener("dblclick", (event) => {
    const pane = event.target.closest(".copies-pane");
    if (pane) zoom(2.5, ...inside(pane, event));
  });
}

const gap = (fingers) => {
  const [a, b] = [...fingers.values()];
  return Math.hypot(a[0] - b[0], a[1] - b[1]);
};

// Whether a key was used.
export function pressed(event) {
  if (!groups.length || event.ctrlKey || event.metaKey || event.altKey) return false;
  const acts = {
    ArrowLeft: () => compare(shown - 1),
    ArrowRight: () => compare(shown + 1),
    ArrowUp: () => show(at - 1),
    ArrowDown: () => show(at + 1),
    a: () => decide(shown, true),
    k: () => decide(shown, false),
    u: () => decide(shown, null),
    d: toggleDifference,
    "+": () => zoom(1.5),
    "=": () => zoom(1.5),
    "-": () => zoom(1 / 1.5),
    0: whole,
  };
  const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return false;
  event.preventDefault();
  act();
  return true;
}
