// The page: what is asked for stands in the address (state.js); this file shows it and listens.

import * as api from "./api.js";
import { element, enlarger, mark, picture, shortName } from "./card.js";
import { Grid } from "./grid.js";
import { makeLabels, renderLabels } from "./labels.js";
import { Lightbox } from "./lightbox.js";
import { compare, fill, neighbour, skeleton } from "./results.js";
import { Scatter } from "./scatter.js";
import { go, read, same, without } from "./state.js";
import { listenForPhotos, preview } from "./photos.js";

const $ = (selector) => document.querySelector(selector);
const HITS = 12;
const MOST = 200;

const sides = ["forward", "gradient"];
const wanted = { forward: HITS, gradient: HITS }; // hits a side
const hits = { forward: [], gradient: [] };
let store = null;
let tray = { like: [], unlike: [] };
let shown = { asked: "", filter: "" };
let points = null;
let working = new AbortController();
let scrolled = 0;

const grid = new Grid($("#grid"), (offset, limit) => api.images(read(), offset, limit), () => mark($("#grid"), tray.like, tray.unlike));
const scatter = new Scatter($("#plot"), (id) => search([{ id }]));
const lightbox = new Lightbox($("#lightbox"), { shown: markAll, closed: (at) => back(at) });
let back = () => {}; // where the focus goes when the lightbox closes

function notice(text) {
  $("#notice p").textContent = text;
  $("#notice").hidden = !text;
}

function search(like, unlike = []) {
  tray = { like: [], unlike: [] };
  go({ like, unlike });
}

// ---- what the address says ----

function render() {
  const state = read();
  const querying = state.like.length > 0;
  if (querying && !$("#collection").hidden) scrolled = scrollY;
  const returned = !querying && $("#collection").hidden;
  $("#collection").hidden = querying;
  $("#results").hidden = !querying;
  if (document.activeElement !== $("#text")) $("#text").value = state.text;
  renderLabels(state.labels);
  renderTray(querying);
  const filter = JSON.stringify([state.labels, state.text]);
  if (querying) renderResults(state);
  else {
    working.abort();
    shown.asked = "";
    document.title = `${store.name} – deepfishing`;
    if (filter !== shown.filter) renderCollection(filter);
    else grid.layout();
    if (returned) scrollTo(0, filter === shown.filter ? scrolled : 0);
  }
}

async function renderCollection(filter) {
  shown.filter = filter;
  const count = $("#count");
  count.classList.remove("error");
  try {
    await grid.reset();
    if (shown.filter !== filter) return;
    const all = grid.total === store.images;
    count.textContent = grid.total ? `${grid.total.toLocaleString()} ${all ? "" : `of ${store.images.toLocaleString()} `}pictures` : "No picture passes this filter.";
    if (!grid.total) count.append(" ", element("button", { type: "button", textContent: "Remove the filter", onclick: () => go({ labels: [], text: "" }) }));
  } catch (error) {
    failed(count, error, () => renderCollection(filter));
    shown.filter = "";
  }
}

function failed(place, error, again) {
  place.classList.add("error");
  place.textContent = `${error.message} `;
  if (again) place.append(element("button", { type: "button", textContent: "Try again", onclick: again }));
}

function renderResults(state) {
  const chosen = Object.fromEntries(sides.map((side) => [side, store[side].includes(state[side]) ? state[side] : store[side][0] || ""]));
  const query = JSON.stringify([state.like, state.unlike]);
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
  const filter = { like: state.like, unlike: state.unlike, labels: state.labels, text: state.text };
  for (const side of sides) renderSide(side, { ...filter, by: chosen[side], k: wanted[side] }, working.signal);
  renderPlot({ ...filter, by: chosen.gradient }, working.signal);
  renderPredictions(state, working.signal);
  const one = state.like[0];
  document.title = `${one.id ? shortName(one.id) : "Your photo"} – deepfishing`;
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
    line.textContent = side === "gradient" ? "This store has no gradients. Add them with: deepfish extract IMAGES STORE --features dW8" : "This store has no forward features.";
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
  const { like, unlike } = read().like.length ? read() : tray;
  mark(document, like, unlike);
}

async function renderPredictions(state, signal) {
  const box = $("#predictions");
  box.hidden = true;
  if (!store.model || state.like.length !== 1) return;
  try {
    const { classes } = await api.predict(state.like[0], signal);
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

async function renderExamples({ like, unlike }) {
  const alone = like.length === 1 && !unlike.length;
  $("#examples").classList.toggle("alone", alone);
  const item = (one, sign, list) =>
    example(one, sign, alone ? null : () => go({ [list]: without(read()[list], one) }), alone ? "large" : "small");
  $("#examples").replaceChildren(...like.map((one) => item(one, "plus", "like")), ...unlike.map((one) => item(one, "minus", "unlike")));
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
  const sets = state.like.length ? state : tray;
  const there = sets[list].some((one) => same(one, { id }));
  const change = { [list]: there ? without(sets[list], { id }) : [...sets[list], { id }], [other]: without(sets[other], { id }) };
  if (state.like.length) go(change.like?.length === 0 ? { like: [], unlike: [] } : change);
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

function makeKernels() {
  for (const side of sides) {
    const choice = $(`#${side} select`);
    choice.replaceChildren(...store[side].map((name) => element("option", { value: name, textContent: name })));
    choice.disabled = store[side].length < 2;
    choice.addEventListener("change", () => go({ [side]: choice.value }));
    $(`#${side} .more`).addEventListener("click", () => {
      wanted[side] = Math.min(MOST, wanted[side] + 2 * HITS);
      render();
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
  else if (asked === "search") {
    back = () => {};
    lightbox.close();
    search([{ id }]);
  } else toggle(id, asked);
}

// Show the picture of a card large, among its neighbours.
function enlarge(one) {
  const { id, index } = one.dataset;
  const side = one.closest(".column")?.id;
  if (index !== undefined) {
    back = (at) => grid.focusOn(at);
    lightbox.open((at) => grid.image(at), grid.total, Number(index));
  } else if (side) {
    const list = hits[side];
    back = (at) => $(`#${side} [data-id="${CSS.escape(list[at].id)}"] .shot`)?.focus();
    lightbox.open((at) => list[at], list.length, list.findIndex((hit) => hit.id === id));
  } else {
    back = () => one.querySelector("button")?.focus();
    lightbox.open(() => api.image(id), 1, 0);
  }
}

function pressed(event) {
  if (lightbox.isOpen) return;
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "Escape") return escape(typing);
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    $("#text").focus();
    $("#text").select();
    return;
  }
  const here = event.target.closest(".card[data-id]");
  const inGrid = !$("#collection").hidden;
  if (here && event.key.toLowerCase() === "o") enlarge(here);
  else if (here && (event.key === "+" || event.key === "-")) toggle(here.dataset.id, event.key === "+" ? "plus" : "minus");
  else if (inGrid && (here || event.target === document.body || event.target.id === "main")) {
    const to = here ? grid.next(event.key) : event.key.startsWith("Arrow") ? grid.focus : null;
    if (to === null) return;
    event.preventDefault();
    grid.focusOn(to);
  } else if (here && event.key.startsWith("Arrow")) {
    event.preventDefault();
    const to = neighbour(here.querySelector(".shot"), event.key);
    if (to) {
      here.querySelector(".shot").tabIndex = -1;
      to.tabIndex = 0;
      to.focus();
    }
  } else if (!inGrid && event.key.startsWith("Arrow") && event.target === document.body) $("#results .card .shot[tabindex='0']")?.focus();
}

function escape(typing) {
  if (!$("#notice").hidden) return notice("");
  if (typing && $("#text").value) {
    $("#text").value = "";
    return filtered();
  }
  if (typing) return document.activeElement.blur();
  if (read().like.length) {
    go({ like: [], unlike: [] });
    return grid.focusOn(grid.focus);
  }
  tray = { like: [], unlike: [] };
  renderTray(false);
  return markAll();
}

let typed = 0;
function filtered() {
  clearTimeout(typed);
  typed = setTimeout(() => go({ text: $("#text").value.trim() }, true), 200);
}

async function start() {
  listenForPhotos(search, notice); // first: a photo dropped early must not replace the page
  $("#notice button").addEventListener("click", () => notice(""));
  try {
    store = await api.store();
  } catch (error) {
    failed($("#count"), error, () => location.reload());
    return;
  }
  $("#store").textContent = `${store.name} · ${store.network}`;
  makeLabels(store.labels);
  makeKernels();
  document.addEventListener("click", clicked);
  document.addEventListener("keydown", pressed);
  addEventListener("hashchange", render);
  addEventListener("popstate", () => dispatchEvent(new Event("hashchange")));
  $("#text").addEventListener("input", filtered);
  $(".filter").addEventListener("submit", (event) => {
    event.preventDefault();
    grid.focusOn(0);
  });
  $("#tray-search").addEventListener("click", () => search(tray.like, tray.unlike));
  $("#tray-clear").addEventListener("click", () => escape(false));
  for (const link of document.querySelectorAll(".brand, .back")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      go({ like: [], unlike: [] });
    });
  }
  $(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    $("#main").focus();
  });
  render();
}

start();
