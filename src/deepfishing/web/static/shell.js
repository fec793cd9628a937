// The page around the views: navigation, the filter that all of them share, keys, messages.
//
// A view NAME has its elements in view_NAME.html, which the server puts into the page as a template;
// those with data-place="bar" go to the foot of the page. Its module view_NAME.js has
//   mount(place, context)   make the view inside of an element, which has a copy of the template; may be async
//   update(state)           optional: show the state that the address says; called after mount, too
//   pressed(event)          optional: a key that no field and no dialog has taken; true if it was used
//   dropped(files)          optional: photos were dropped; true if the view takes them
//   unmount()               optional: context.signal is aborted and the elements go anyway
//   keys                    optional: pairs of keys and words for the foot of the page
//   style                   optional: the name of a stylesheet in static/
//   chips                   optional: "filter" if only the labels of the filter are chips, not all
// The context has `store` (of /api/store), `signal` (aborted when the view goes) and `labelsChanged()`
// (counts of labels are asked for again). Nothing makes HTML of text: elements are made by `element`.

import * as api from "./api.js";
import { element } from "./card.js";
import { makeLabels, renderLabels } from "./labels.js";
import { failed, isNoticeOpen, notice, toast } from "./messages.js";
import { showOpening } from "./opening.js";
import { listenForPhotos } from "./photos.js";
import { address, FIRST_VIEW, go, isFiltered, NO_FILTER, read } from "./state.js";

const $ = (selector) => document.querySelector(selector);
const links = [...document.querySelectorAll("#views [data-view]")];
const names = links.map((link) => link.dataset.view);

let store = null;
let current = null; // the view on the screen: {name, module, leave}
let step = 0; // a view that comes late must not replace a later one

const search = (like, unlike = []) => go({ view: FIRST_VIEW, like, unlike, ...NO_FILTER });

// ---- views ----

async function render() {
  const state = read();
  const name = names.includes(state.view) ? state.view : FIRST_VIEW;
  renderFrame(state, name);
  if (current?.name === name) {
    current.module.update?.(state);
    return;
  }
  step += 1;
  const mine = step;
  try {
    const module = await import(`./view_${name}.js`);
    await loadStyle(module.style);
    if (mine !== step) return;
    await change(name, module);
  } catch (error) {
    if (mine !== step) return;
    current = null;
    const line = element("p");
    failed(line, error, () => location.reload());
    $("#main").replaceChildren(line);
  }
}

async function change(name, module) {
  leave();
  const ended = new AbortController();
  const place = element("div", { className: "view" });
  place.dataset.view = name;
  current = { name, module, leave: () => ended.abort() };
  document.body.dataset.view = name;
  document.body.dataset.chips = module.chips ?? "all";
  place.append(document.getElementById(`view-${name}`).content.cloneNode(true));
  $("#bar").replaceChildren(...place.querySelectorAll("[data-place=bar]"));
  $("#main").replaceChildren(place);
  $("#keys").replaceChildren(...(module.keys ?? []).map(keyWords));
  scrollTo(0, 0);
  await module.mount(place, { store, signal: ended.signal, labelsChanged });
  if (!ended.signal.aborted) module.update?.(read());
}

function leave() {
  if (!current) return;
  current.module.unmount?.();
  current.leave();
  current = null;
  $("#bar").replaceChildren();
}

const styles = new Map();
function loadStyle(name) {
  if (!name) return null;
  if (!styles.has(name)) {
    const link = element("link", { rel: "stylesheet", href: `/static/${name}` });
    styles.set(name, new Promise((done) => ["load", "error"].forEach((kind) => link.addEventListener(kind, done))));
    document.head.append(link);
  }
  return styles.get(name);
}

function keyWords([keys, words]) {
  const caps = keys.split(" ").map((key) => element("kbd", { textContent: key }));
  return element("span", {}, ...caps, ` ${words}`);
}

// ---- the filter ----

function renderFrame(state, name) {
  for (const link of links) {
    link.href = address({ ...state, view: link.dataset.view, like: [], unlike: [], show: "" });
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (document.activeElement !== $("#text")) $("#text").value = state.text;
  renderLabels(state);
}

async function labelsChanged() {
  try {
    store.labels = (await api.store()).labels;
  } catch {
    return; // the next change asks again
  }
  makeLabels(store.labels);
  renderLabels(read());
}

let typed = 0;
function filtered() {
  clearTimeout(typed);
  typed = setTimeout(() => go({ text: $("#text").value.trim() }, true), 200);
}

// ---- keys ----

function pressed(event) {
  if (document.querySelector("dialog[open]")) return;
  const typing = event.target.matches("input:not([type=checkbox], [type=radio], [type=range]), select, textarea");
  if (event.key === "Escape" && escaped(typing)) return;
  if (typing) return;
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !current?.module.takesSlash) {
    event.preventDefault();
    $("#text").focus();
    $("#text").select();
    return;
  }
  if (current?.module.pressed?.(event)) return;
  const by = { "[": -1, "]": 1 }[event.key];
  if (by) go({ view: names.at((names.indexOf(current?.name) + by) % names.length), like: [], unlike: [], show: "" });
}

// Whether Escape closed something of the shell.
function escaped(typing) {
  if (isNoticeOpen()) {
    notice("");
    return true;
  }
  if (document.activeElement === $("#text") && $("#text").value) {
    $("#text").value = "";
    filtered();
    return true;
  }
  if (typing) document.activeElement.blur();
  return typing;
}

// ---- start ----

async function start() {
  // first: a photo dropped early must not replace the page
  listenForPhotos(search, notice, (files) => current?.module.dropped?.(files));
  try {
    store = await api.store();
  } catch (error) {
    const line = element("p");
    failed(line, error, () => location.reload());
    $("#main").replaceChildren(line);
    return;
  }
  if (store.opening) {
    showOpening($("#main"));
    return;
  }
  if (store.unread) toast(`${store.unread.toLocaleString()} photos of the folder have not been read yet.`, ["Read them", () => api.resumeOpening().then(() => location.reload())]);
  $("#store").textContent = store.name;
  $("#store").title = `${store.name}, features of ${store.network}`;
  makeLabels(store.labels);
  document.addEventListener("keydown", pressed);
  addEventListener("hashchange", render);
  addEventListener("popstate", () => dispatchEvent(new Event("hashchange")));
  $("#text").addEventListener("input", filtered);
  $(".filter").addEventListener("submit", (event) => {
    event.preventDefault();
    $("#main").focus();
    dispatchEvent(new Event("filter-submitted"));
  });
  for (const link of links) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      go({ view: link.dataset.view, like: [], unlike: [], show: "" });
    });
  }
  $(".brand").addEventListener("click", (event) => {
    event.preventDefault();
    go({ view: FIRST_VIEW, like: [], unlike: [], ...(isFiltered(read()) && read().view === FIRST_VIEW && !read().like.length ? NO_FILTER : {}) });
  });
  $(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    $("#main").focus();
  });
  render();
}

start();
