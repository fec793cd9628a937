// Labels that classifiers contradict which have not seen the photo: beside the nearest photos of both
// classes, decided with one key. And what is taken for what, and the photos of each class that are the
// most and the least certain.

import * as api from "./api.js";
import { element, picture, shortName } from "./card.js";
import { meantClass } from "./labels.js";
import { lightbox } from "./lightbox.js";
import { failed, notice, toast } from "./messages.js";
import { address, filterOf, FIRST_VIEW, go, NO_FILTER, read } from "./state.js";

export const style = "view_review.css";
export const keys = [
  ["A", "accept"],
  ["K", "keep the label"],
  ["O", "other class"],
  ["← →", "before, later"],
  ["U", "undo"],
];

const $ = (selector) => document.querySelector(selector);
const AGAIN = 400; // milliseconds
const PARTS = { "": "#doubts", table: "#table", classes: "#certain" };
const TOO_FEW = "There is nothing to review yet. Two classes with two photos each are needed.";
const MANY = 0.2; // share of doubtful labels of which most will be right
const words = (name) => name || "none of these";

let context = null;
let review = null;
let doubts = [];
let at = 0;
let filter = null;
let part = "";
let watching = 0;
let busy = false;
const done = []; // what was decided in this tab, to be undone: {act} or {kept}

// ---- how far it is ----

async function watch() {
  watching += 1;
  const mine = watching;
  $(".review").setAttribute("aria-busy", "true");
  for (;;) {
    let found;
    try {
      found = await api.get(`/api/review?${api.filterQuery(filterOf(read()))}`);
    } catch (error) {
      if (mine === watching && !context.signal.aborted) failed($("#summary"), error, watch);
      return;
    }
    if (mine !== watching || context.signal.aborted) return;
    $(".review").setAttribute("aria-busy", String(found.is_running));
    render(found);
    if (!found.is_running) return;
    await new Promise((go_on) => setTimeout(go_on, AGAIN));
    if (mine !== watching || context.signal.aborted) return;
  }
}

function render(found) {
  const line = $("#summary");
  line.classList.remove("error");
  $("#look-again").hidden = !found.is_stale || found.is_running || Boolean(found.error);
  $(".tabs").hidden = Boolean(found.is_too_few);
  if (found.is_too_few) {
    line.replaceChildren(TOO_FEW, " ", element("a", { className: "button primary", href: "#view=label", textContent: "Label photos" }));
    review = null;
    renderPart();
    return;
  }
  if (found.error && !found.classes) {
    line.textContent = sentence(found.error);
    review = null;
    renderPart();
    return;
  }
  if (!found.classes) {
    const { stage, done: n, total } = found.job ?? {};
    line.textContent = `Looking at the labels …${total ? ` ${stage} ${n} of ${total}` : ""}`;
    return;
  }
  const before = doubts[at]?.id;
  review = found;
  doubts = found.doubts.first;
  at = Math.max(0, doubts.findIndex((one) => one.id === before));
  line.textContent = summary(found);
  $("#known-classes").replaceChildren(...found.classes.filter(Boolean).map((name) => element("option", { value: name })));
  renderPart();
}

function sentence(text) {
  const line = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.?!]$/.test(line) ? line : `${line}.`;
}

function summary({ photos, doubts: { total }, table }) {
  const right = table.reduce((sum, row, at) => sum + row[at], 0);
  const counted = table.flat().reduce((sum, n) => sum + n, 0);
  const words = counted ? ` Classifiers that have not seen the photo are right for ${right.toLocaleString()} of ${counted.toLocaleString()}.` : "";
  const many = total > MANY * counted ? " Classifiers that are often wrong doubt often: look at the first of these labels, then label more." : "";
  return `${photos.toLocaleString()} labelled photos, ${total.toLocaleString()} labels to look at again, the most doubtful first.${words}${many}`;
}

// ---- doubtful labels ----

function renderDoubt() {
  const doubt = doubts[at];
  for (const name of ["#accept", "#keep", "#later", "#other", ".sides"]) $(name).hidden = !doubt;
  $("#undo-review").disabled = !done.length;
  if (!doubt) {
    $("#doubted").replaceChildren();
    $("#doubted-name").textContent = "";
    $("#doubt-words").textContent = "No label is in doubt.";
    return;
  }
  $("#doubted").className = "shot";
  $("#doubted").replaceChildren(picture(api.thumbnail(doubt.id, "large"), doubt.id));
  $("#doubted-name").textContent = `${at + 1} of ${doubts.length}: ${doubt.id}`;
  const given = doubt.given.length ? doubt.given.join(", ") : words("");
  const suggested = doubt.suggested.length ? doubt.suggested.join(", ") : words("");
  $("#doubt-words").replaceChildren("Labelled ", element("b", { textContent: given }), ", looks like ", element("b", { textContent: suggested }));
  $("#accept").replaceChildren(`It is ${suggested} `, element("kbd", { textContent: "A" }));
  $("#keep").replaceChildren(`Keep ${given} `, element("kbd", { textContent: "K" }));
  $("#loses-title").textContent = `The nearest of ${words(doubt.loses || doubt.given[0])}`;
  $("#gains-title").textContent = `The nearest of ${words(doubt.gains || doubt.suggested[0])}`;
  renderBeside(doubt);
}

async function renderBeside(doubt) {
  const query = new URLSearchParams({ id: doubt.id, loses: doubt.loses || doubt.given[0] || "", gains: doubt.gains || doubt.suggested[0] || "" });
  for (const side of ["loses", "gains"]) $(`#${side}`).replaceChildren();
  try {
    const beside = await api.get(`/api/review/beside?${query}`);
    if (doubts[at] !== doubt || context.signal.aborted) return;
    for (const side of ["loses", "gains"]) $(`#${side}`).replaceChildren(...thumbnails(beside[side]));
  } catch (error) {
    if (doubts[at] === doubt && !context.signal.aborted) notice(error.message);
  }
}

// Pictures that a click enlarges.
function thumbnails(ids) {
  return ids.map((id, number) => {
    const button = element("button", { type: "button", className: "shot", title: id, ariaLabel: `Enlarge ${shortName(id)}` }, picture(api.thumbnail(id)));
    button.addEventListener("click", () => lightbox.open((n) => api.image(ids[n]), ids.length, number, { closed: () => button.focus() }));
    return element("li", {}, button);
  });
}

async function decide(work) {
  if (busy || !doubts[at]) return;
  busy = true;
  const doubt = doubts[at];
  try {
    done.push(await work(doubt));
    doubts.splice(at, 1);
    at = Math.min(at, Math.max(0, doubts.length - 1));
    renderDoubt();
    watch();
  } catch (error) {
    notice(error.message);
  }
  busy = false;
}

const relabel = (names) =>
  decide(async (doubt) => {
    const { act } = await api.changeLabels({ ids: [doubt.id], labels: names ?? doubt.suggested, seen: doubt.given });
    return { act, doubt };
  });

const keep = () =>
  decide(async (doubt) => {
    await api.post("/api/review/keep", { id: doubt.id });
    return { kept: doubt.id, doubt };
  });

async function undo() {
  if (busy || !done.length) return;
  busy = true;
  const last = done.at(-1);
  try {
    if (last.act) await api.undoLabels(last.act);
    if (last.kept) await api.post("/api/review/keep", { id: last.kept, undo: true });
    done.pop();
    doubts.splice(at, 0, last.doubt);
    renderDoubt();
    watch();
  } catch (error) {
    notice(error.message);
  }
  busy = false;
}

function step(by) {
  if (!doubts.length) return;
  at = (at + by + doubts.length) % doubts.length;
  renderDoubt();
}

// ---- what is taken for what ----

function renderTable() {
  const { classes, table, known } = review;
  const head = classes.map((name) => element("th", { scope: "col" }, element("span", { textContent: words(name) })));
  $("#table thead").replaceChildren(element("tr", {}, element("td"), ...head));
  $("#table tbody").replaceChildren(...classes.map((name, row) => tableRow(name, row, table[row], classes, known)));
}

function tableRow(name, row, counts, classes, known) {
  const total = counts.reduce((sum, n) => sum + n, 0);
  const cells = counts.map((n, column) => {
    if (!n) return element("td");
    const button = element("button", { type: "button", textContent: n, onclick: () => openCell(name, classes[column]) });
    button.setAttribute("aria-label", `${n} photos of ${words(name)} taken for ${words(classes[column])}`);
    const cell = element("td", { className: row === column ? "right" : "wrong" }, button);
    cell.style.setProperty("--share", n / total);
    return cell;
  });
  const title = known[row] ? words(name) : `${words(name)}: too few photos`;
  return element("tr", {}, element("th", { scope: "row", textContent: words(name), title }), ...cells);
}

async function openCell(given, predicted) {
  try {
    const { selection } = await api.post("/api/review/cell", { given, predicted });
    go({ view: FIRST_VIEW, show: "", ...NO_FILTER, selection });
  } catch (error) {
    notice(error.message);
  }
}

// ---- most and least certain ----

async function renderClasses() {
  const place = $("#certain");
  const { classes } = review;
  const mine = review;
  const made = [];
  for (const name of classes) {
    const found = await api.get(`/api/review/class?${new URLSearchParams({ name })}`).catch((error) => ({ error }));
    if (mine !== review || context.signal.aborted) return;
    if (found.error) continue;
    const side = (title, list) => element("div", {}, element("h3", { textContent: title }), element("ul", { className: "certain-row" }, ...thumbnails(list.map((one) => one.id))));
    const body = found.most.length ? element("div", { className: "pair" }, side("most certain", found.most), side("least certain", found.least)) : element("p", { className: "soft", textContent: "too few photos" });
    made.push(element("section", {}, element("h2", {}, `${words(name)} `, element("small", { textContent: found.photos })), body));
    place.replaceChildren(...made);
  }
}

// ---- the view ----

function renderPart() {
  for (const [name, selector] of Object.entries(PARTS)) $(selector).hidden = name !== part || !review;
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.dataset.show === part) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    link.href = address({ ...read(), show: link.dataset.show });
  }
  if (!review) return;
  if (part === "") renderDoubt();
  else if (part === "table") renderTable();
  else renderClasses();
}

// Whether a key was used.
export function pressed(event) {
  if (part !== "" || event.ctrlKey || event.metaKey || event.altKey) return false;
  const key = event.key.toLowerCase();
  if (key === "a") relabel();
  else if (key === "k") keep();
  else if (key === "u") undo();
  else if (event.key === "ArrowRight") step(1);
  else if (event.key === "ArrowLeft") step(-1);
  else if (key === "o") {
    event.preventDefault();
    $("#other-name").focus();
  } else return false;
  return true;
}

export function update(state) {
  part = state.show in PARTS ? state.show : "";
  renderPart();
  const now = JSON.stringify(filterOf(state));
  if (now === filter) return;
  filter = now;
  watch();
}

export function mount(place, given) {
  context = given;
  document.title = `Review – ${context.store.name}`;
  Object.assign($("#undo-review"), { onclick: undo });
  $("#accept").addEventListener("click", () => relabel());
  $("#keep").addEventListener("click", keep);
  $("#later").addEventListener("click", () => step(1));
  $("#look-again").addEventListener("click", () => api.post("/api/review", {}).then(watch, (error) => notice(error.message)));
  $("#other").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = meantClass($("#other-name").value, review?.classes ?? []);
    if (!name) return;
    $("#other-name").value = "";
    $("#other-name").blur();
    relabel([name]).then(() => toast(`It is ${name} now.`, ["Undo", undo]));
  });
  for (const link of place.querySelectorAll(".tabs a")) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      go({ show: link.dataset.show });
    });
  }
  review = null;
  doubts = [];
  at = 0;
  filter = null;
  busy = false;
}

export function unmount() {
  watching += 1;
  context.labelsChanged();
}
