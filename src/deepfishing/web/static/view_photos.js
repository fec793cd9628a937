// The view of all photos, and of a search among them. The search is kept in the address.

import * as api from "./api.js";
import { element, enlarger, mark, picture, shortName } from "./card.js";
import { Grid } from "./grid.js";
import { lightbox } from "./lightbox.js";
import { failed, notice } from "./messages.js";
import { preview } from "./photos.js";
import { compare, fill, neighbour, skeleton } from "./results.js";
import { Scatter } from "./scatter.js";
import { Picker } from "./select.js";
import { Side } from "./side.js";
import { filterOf, go, isFiltered, NO_FILTER, read, same, without } from "./state.js";

export const keys = [
  ["← ↑ ↓ →", "move"],
  ["Enter", "search"],
  ["O", "enlarge"],
  ["+ −", "like these, not like those"],
  ["X", "select"],
  ["/", "filter"],
  ["Esc", "back"],
];

const $ = (selector) => document.querySelector(selector);
const HITS = 12;
const MOST = 200;

const BASES = {
  "held out": "The model was trained on this picture; this prediction is made by one that was trained without it and its copies.",
  seen: "The model was trained on this picture, so it knows the label.",
};

const sides = ["forward", "gradient"];
const wanted = { forward: HITS, gradient: HITS }; // hits a side
const hits = { forward: [], gradient: [] };
let store = null;
let tray = { like: [], unlike: [] };
let shown = { asked: "", filter: "" };
let points = null;
let working = new AbortController();
let scrolled = 0; // where the grid was when it went
let scrolledFilter = "";
let grid = null;
let scatter = null;
let picker = null;
let side = null;
let context = null;

function search(like, unlike = []) {
  tray = { like: [], unlike: [] };
  go({ like, unlike, words: "", ...NO_FILTER }); // a new search is among all pictures
}

// ---- what the address says ----

const isSearch = (state) => state.like.length > 0 || Boolean(state.words);

export function update(state) {
  const querying = isSearch(state);
  if (querying && !$("#collection").hidden) keepPlace();
  const returned = !querying && $("#collection").hidden;
  $("#collection").hidden = querying;
  $("#results").hidden = !querying;
  document.body.dataset.chips = querying ? "all" : "filter"; // the panel has the others
  renderTray(querying);
  const filter = JSON.stringify([filterOf(state), state.order]);
  $("#order").value = state.order;
  if (querying) renderResults(state);
  else {
    working.abort();
    shown.asked = "";
    document.title = `${store.name} – deepfishing`;
    if (filter !== shown.filter) {
      renderCollection(filter);
      side.update(state);
    }
    else grid.layout();
    if (returned) scrollTo(0, filter === shown.filter ? scrolled : 0);
  }
}

function keepPlace() {
  scrolled = scrollY;
  scrolledFilter = shown.filter;
}

async function renderCollection(filter) {
  const isBack = shown.filter === "" && filter === scrolledFilter; // from another view
  shown.filter = filter;
  const count = $("#count");
  count.classList.remove("error");
  try {
    await grid.reset();
    if (shown.filter !== filter) return;
    count.textContent = grid.total ? countWords() : "No picture passes this filter.";
    if (!grid.total) count.append(" ", element("button", { type: "button", textContent: "Remove the filter", onclick: () => go(NO_FILTER) }));
    if (isBack) scrollTo(0, scrolled);
  } catch (error) {
    const removable = isFiltered(read());
    failed(count, error, removable ? null : () => renderCollection(filter));
    if (removable) count.append(element("button", { type: "button", textContent: "Remove the filter", onclick: () => go(NO_FILTER) }));
    shown.filter = "";
  }
}

function countWords() {
  const all = grid.total === store.images;
  return `${grid.total.toLocaleString()} ${all ? "" : `of ${store.images.toLocaleString()} `}pictures`;
}

function renderResults(state) {
  const chosen = Object.fromEntries(sides.map((side) => [side, store[side].includes(state[side]) ? state[side] : store[side][0] || ""]));
  const query = JSON.stringify([state.like, state.unlike, state.words]);
  if (shown.query !== query) {
    for (const side of sides) wanted[side] = HITS;
    scrollTo(0, 0);
  }
  const asked = JSON.stringify([state, chosen, wanted]);
  if (asked === shown.asked) return;
  Object.assign(shown, { asked, query });
  working.abort();
  working = new AbortController();
  points = null;
  scatter.clear();
  renderExamples(state);
  const filter = { like: state.like, unlike: state.unlike, ...filterOf(state) };
  const words = state.words;
  $("#plot").hidden = Boolean(words);
  showSides(Boolean(words));
  if (words) renderSide("forward", { ...filter, words, by: chosen.forward, k: wanted.forward }, working.signal);
  else {
    for (const side of sides) renderSide(side, { ...filter, by: chosen[side], k: wanted[side] }, working.signal);
    renderPlot({ ...filter, by: chosen.gradient }, working.signal);
  }
  renderPredictions(state, working.signal);
  const one = state.like[0];
  document.title = `${state.words || (one.id ? shortName(one.id) : "Your photo")} – deepfishing`;
}

async function renderSide(side, asked, signal) {
  const column = $(`#${side}`);
  const [line, list, more] = [".state", ".hits", ".more"].map((name) => column.querySelector(name));
  column.querySelector("select").value = asked.by;
  line.classList.remove("error");
  more.hidden = true;
  hits[side] = [];
  if (!asked.by) {
    list.replaceChildren();
    line.textContent = "";
    return;
  }
  line.textContent = "Searching …";
  if (!list.querySelector("[data-id]")) skeleton(list, 6);
  list.setAttribute("aria-busy", "true");
  try {
    const { hits: found } = await api.search(asked, signal);
    hits[side] = found;
    fill(list, found);
    line.textContent = found.length ? "" : "No other picture passes this filter.";
    more.hidden = found.length < asked.k || asked.k >= MOST;
    meet();
  } catch (error) {
    if (error.name === "AbortError") return;
    list.replaceChildren();
    failed(line, error, () => renderSide(side, asked, signal));
  }
  list.removeAttribute("aria-busy");
}

async function renderPlot(asked, signal) {
  $("#plot").hidden = !asked.by;
  if (!asked.by) return;
  const line = $("#plot .state");
  line.classList.remove("error");
  line.textContent = "Comparing with all pictures …";
  try {
    const found = await api.scatter(asked, signal);
    points = new Map(found.ids.map((id, i) => [id, [found.forward[i], found.backward[i]]]));
    line.textContent = found.ids.length ? "" : "Nothing to compare with.";
    $("#plot .lines").hidden = !found.is_product;
    scatter.set(found, new Set([...asked.like, ...asked.unlike].map((one) => one.id)));
    meet();
  } catch (error) {
    if (error.name !== "AbortError") failed(line, error, () => renderPlot(asked, signal));
  }
}

// Whichever of lists and plot comes last, all three know of each other.
function meet() {
  const lists = sides.map((side) => ({ list: $(`#${side} .hits`), hits: hits[side] }));
  scatter.highlight(compare(lists, points));
  markAll();
}

function markAll() {
  const { like, unlike } = isSearch(read()) ? read() : tray;
  mark(document, like, unlike, picker?.selected);
}

async function renderPredictions(state, signal) {
  const box = $("#predictions");
  box.hidden = true;
  if (!store.model || state.like.length !== 1) return;
  try {
    const { classes, basis } = await api.predict(state.like[0], signal);
    box.querySelector(".basis").textContent = BASES[basis] ?? "";
    box.querySelector("ol").replaceChildren(
      ...classes.map((one) => {
        const fillBar = element("i");
        fillBar.style.width = `${one.probability * 100}%`;
        return element("li", {}, element("span", { textContent: one.name }), element("span", { className: "track" }, fillBar), element("b", { textContent: `${(one.probability * 100).toFixed(0)} %` }));
      }),
    );
    box.hidden = !classes.length;
  } catch (error) {
    if (error.name !== "AbortError") notice(error.message);
  }
}

// ---- examples ----

function example(one, sign, remove, size = "small") {
  const item = element("li", { className: `example ${sign}` });
  const name = one.id ? shortName(one.id) : "your photo";
  const src = one.id ? api.thumbnail(one.id, size) : preview(one.upload);
  const frame = element("span", { className: "shot", title: one.id || name });
  if (src) frame.append(picture(src, `${sign === "plus" ? "Like" : "Not like"} ${name}`));
  else frame.classList.add("gone", "unseen"); // a photo from before the page was loaded again
  item.append(frame, element("span", { className: "name", textContent: name }));
  if (one.id && size === "large") {
    item.dataset.id = one.id;
    frame.append(enlarger(one.id));
  }
  if (remove) {
    const button = element("button", { type: "button", textContent: "×", onclick: remove });
    button.setAttribute("aria-label", `Remove ${name}`);
    item.append(button);
  }
  return item;
}

async function renderExamples({ like, unlike, words }) {
  const alone = like.length === 1 && !unlike.length && !words;
  $("#examples").classList.toggle("alone", alone);
  const item = (one, sign, list) =>
    example(one, sign, alone ? null : () => go({ [list]: without(read()[list], one) }), alone ? "large" : "small");
  const asked = words ? [element("li", { className: "asked", textContent: `“${words}”` })] : [];
  $("#examples").replaceChildren(...asked, ...like.map((one) => item(one, "plus", "like")), ...unlike.map((one) => item(one, "minus", "unlike")));
  if (!alone || !like[0].id) return;
  try {
    const { labels } = await api.image(like[0].id);
    const name = $("#examples.alone .name");
    if (labels.length && name?.textContent === shortName(like[0].id)) name.append(element("span", { className: "tags", textContent: labels.join(", ") }));
  } catch {
    // the lists say what is wrong
  }
}

// + and − : in the results they search at once, in the collection they gather in the tray.
function toggle(id, sign) {
  const [list, other] = sign === "plus" ? ["like", "unlike"] : ["unlike", "like"];
  const state = read();
  const sets = isSearch(state) ? state : tray;
  const there = sets[list].some((one) => same(one, { id }));
  const change = { [list]: there ? without(sets[list], { id }) : [...sets[list], { id }], [other]: without(sets[other], { id }) };
  if (isSearch(state)) go(change.like?.length === 0 && !state.words ? { like: [], unlike: [] } : change);
  else {
    tray = { ...tray, ...change };
    renderTray(false);
    markAll();
  }
}

function renderTray(querying) {
  const { like, unlike } = tray;
  $("#tray").hidden = querying || !(like.length + unlike.length);
  const item = (one, sign) => example(one, sign, () => toggle(one.id, sign));
  $("#tray ul").replaceChildren(...like.map((one) => item(one, "plus")), ...unlike.map((one) => item(one, "minus")));
  $("#tray p").textContent = like.length ? `${like.length} like these, ${unlike.length} not like those` : "Add one with + to search";
  $("#tray-search").disabled = !like.length;
}

// ---- kernels ----

// Words are compared with the embedding alone, and a store of imported vectors has no gradients: then
// one side has all of the width.
function showSides(words) {
  $("#forward").hidden = !store.forward.length;
  $("#gradient").hidden = words || !store.gradient.length;
  $(".columns").classList.toggle("single", sides.some((side) => $(`#${side}`).hidden));
}

function makeKernels() {
  for (const side of sides) {
    const choice = $(`#${side} select`);
    choice.replaceChildren(...store[side].map((name) => element("option", { value: name, textContent: name })));
    choice.disabled = store[side].length < 2;
    choice.addEventListener("change", () => go({ [side]: choice.value }));
    $(`#${side} .more`).addEventListener("click", () => {
      wanted[side] = Math.min(MOST, wanted[side] + 2 * HITS);
      update(read());
    });
  }
}

// ---- listening ----

function clicked(event) {
  const button = event.target.closest("[data-action]");
  const id = button?.closest("[data-id]")?.dataset.id;
  if (id === undefined) return;
  const index = button.closest("[data-index]")?.dataset.index;
  if (index !== undefined) grid.focus = Number(index);
  const asked = button.dataset.action;
  if (asked === "enlarge") enlarge(button.closest("[data-id]"));
  else if (asked === "select") picker.toggle(id, Number(index));
  else if (asked !== "search") toggle(id, asked);
  else if (!button.closest("dialog")) search([{ id }]);
}

// Show the picture of a card large, among its neighbours.
function enlarge(one) {
  const { id, index } = one.dataset;
  const side = one.closest(".column")?.id;
  const options = { marks: true, shown: markAll };
  if (index !== undefined) {
    options.closed = (at) => grid.focusOn(at);
    lightbox.open((at) => grid.image(at), grid.total, Number(index), options);
  } else if (side) {
    const list = hits[side];
    options.closed = (at) => $(`#${side} [data-id="${CSS.escape(list[at].id)}"] .shot`)?.focus();
    lightbox.open((at) => list[at], list.length, list.findIndex((hit) => hit.id === id), options);
  } else {
    options.closed = () => one.querySelector("button")?.focus();
    lightbox.open(() => api.image(id), 1, 0, options);
  }
}

// Whether a key was used.
export function pressed(event) {
  if (event.key === "Escape") {
    escape();
    return true;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  const here = event.target.closest(".card[data-id]");
  const inGrid = !$("#collection").hidden;
  const isArrow = event.key.startsWith("Arrow");
  if (here && event.key.toLowerCase() === "o") enlarge(here);
  else if (here && inGrid && event.key.toLowerCase() === "x") picker.toggle(here.dataset.id, Number(here.dataset.index));
  else if (here && inGrid && event.shiftKey && isArrow) extend(event);
  else if (here && (event.key === "+" || event.key === "-")) toggle(here.dataset.id, event.key === "+" ? "plus" : "minus");
  else if (inGrid && (here || event.target === document.body || event.target.id === "main")) {
    const to = here ? grid.next(event.key) : isArrow ? grid.focus : null;
    if (to === null) return false;
    event.preventDefault();
    grid.focusOn(to);
  } else if (here && isArrow) moveAmongHits(event, here);
  else if (!inGrid && isArrow && event.target === document.body) $("#results .card .shot[tabindex='0']")?.focus();
  else return false;
  return true;
}

// Move on and select the pictures on the way.
async function extend(event) {
  event.preventDefault();
  const to = grid.next(event.key);
  if (to === null) return;
  picker.anchor ??= grid.focus;
  const from = grid.focus;
  await picker.add([from, to]);
  await grid.focusOn(to);
}

function moveAmongHits(event, here) {
  event.preventDefault();
  const to = neighbour(here.querySelector(".shot"), event.key);
  if (!to) return;
  here.querySelector(".shot").tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}

function escape() {
  if (isSearch(read())) {
    go({ like: [], unlike: [], words: "" });
    grid.focusOn(grid.focus);
    return;
  }
  tray = { like: [], unlike: [] };
  renderTray(false);
  picker.clear();
}

// ---- the view ----

// Labels have changed: the pictures and the counts are asked for again.
function relabelled() {
  context.labelsChanged();
  shown.filter = "";
  if (grid.root.isConnected) update(read());
}

export function mount(place, given) {
  context = given;
  store = context.store;
  const { signal } = context;
  Object.assign(shown, { asked: "", filter: "", query: "" });
  grid = new Grid($("#grid"), (offset, limit) => api.images(filterOf(read()), offset, limit, read().order), () => mark($("#grid"), tray.like, tray.unlike, picker?.selected), signal);
  picker = new Picker(grid, $("#picked"), { changed: markAll, labelled: relabelled, known: () => store.labels.map(({ name }) => name), signal });
  side = new Side($("#side"), signal);
  $("#order").addEventListener("change", () => go({ order: $("#order").value }));
  $("#words").hidden = !store.words;
  $("#words").addEventListener("submit", (event) => {
    event.preventDefault();
    const words = $("#words-text").value.trim();
    if (words) go({ like: [], unlike: [], words });
  });
  scatter = new Scatter($("#plot"), (id) => search([{ id }]), signal);
  $(".lead .means").hidden = !store.gradient.length;
  makeKernels();
  document.addEventListener("click", clicked, { signal });
  addEventListener("filter-submitted", () => grid.focusOn(0), { signal });
  $("#tray-search").addEventListener("click", () => search(tray.like, tray.unlike));
  $("#tray-clear").addEventListener("click", escape);
  $(".back").addEventListener("click", (event) => {
    event.preventDefault();
    go({ like: [], unlike: [], words: "" });
  });
}

export function unmount() {
  if (!$("#collection").hidden) keepPlace();
  working.abort();
}
