// One picture at a time, labelled with keys. A label counts when the server has confirmed it.

import * as api from "./api.js";
import { element, picture } from "./card.js";

const $ = (selector) => document.querySelector(selector);
const KEYS = 9; // classes with a number key
const MAX_SKIPPED = 1000; // that the server takes

let context = null;
let shown = null; // id of the picture on the screen
let classes = [];
let skipped = [];
const acts = []; // of this tab, the last one is undone first
let busy = false;

async function refresh() {
  const summary = await api.labels();
  classes = summary.classes;
  $("#state").textContent = `${summary.labelled.toLocaleString()} of ${summary.images.toLocaleString()} pictures are labelled`;
  $("#classes").replaceChildren(...classes.map(classButton));
  $("#undo").disabled = !acts.length;
}
function classButton({ name, images }, at) {
  const button = element("button", { type: "button", value: name, onclick: () => label([name]) });
  if (at < KEYS) button.append(element("kbd", { textContent: at + 1 }));
  button.append(element("span", { textContent: name }), element("small", { className: "soft", textContent: images }));
  return element("li", {}, button);
}

function show(id) {
  shown = id;
  $("#photo").replaceChildren(...(id === null ? [] : [picture(api.thumbnail(id, "large"), id)]));
  $("#name").textContent = id ?? "No picture is left to label.";
}

// Do one thing at a time, so that a key pressed twice does not label two pictures.
async function run(work) {
  if (busy) return;
  busy = true;
  try {
    await work();
    await refresh();
  } catch (error) {
    $("#state").textContent = error.message;
  }
  busy = false;
}

const next = async () => show((await api.nextToLabel(skipped)).id);

const label = (names) =>
  run(async () => {
    if (shown === null) return;
    const { act } = await api.setLabels([shown], names);
    if (act) acts.push(act);
    await next();
  });

const skip = () =>
  run(async () => {
    if (shown === null) return;
    skipped = [...skipped, shown].slice(-MAX_SKIPPED);
    await next();
  });

const undo = () =>
  run(async () => {
    if (!acts.length) return;
    const { ids } = await api.undoLabels(acts.at(-1));
    acts.pop();
    if (ids.length) show(ids[0]);
  });

// Whether a key was used.
export function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  const named = classes[Number(event.key) - 1];
  if (event.key === "/") {
    event.preventDefault();
    $("#class-name").focus();
  } else if (event.key === "0") label([]);
  else if (named && Number(event.key) <= KEYS) label([named.name]);
  else if (event.key.toLowerCase() === "s") skip();
  else if (event.key.toLowerCase() === "u") undo();
  else return false;
  return true;
}

export const takesSlash = true; // for the name of a class

export function mount(place, given) {
  context = given;
  document.title = `Label – ${context.store.name}`;
  $("#none").addEventListener("click", () => label([]));
  $("#skip").addEventListener("click", skip);
  $("#undo").addEventListener("click", undo);
  $("#add").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = $("#class-name").value.trim();
    if (!name) return;
    $("#class-name").value = "";
    $("#class-name").blur();
    label([name]);
  });
  shown = null;
  busy = false;
  run(next);
}

export function unmount() {
  context.labelsChanged();
}
