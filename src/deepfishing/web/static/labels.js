// The filter as chips: the most common labels, the rest in a list, and the selection of another view.
// Where a view shows the labels in another way, only the chips of the filter itself are there.

import * as api from "./api.js";
import { element } from "./card.js";
import { go, isFiltered, NO_FILTER, read } from "./state.js";

const CHIPS = 40;
export const ONLY = { labelled: "labelled", unlabelled: "not labelled", none: "none of these" };
const place = document.querySelector("#labels");
const names = new Map(); // of selections, by key

// The class that was meant: one that is there, written in other capitals, or a new one.
export function meantClass(typed, known) {
  const wanted = typed.trim().toLowerCase();
  return known.find((name) => name.toLowerCase() === wanted) ?? typed.trim();
}

function toggle(name) {
  const { labels } = read();
  go({ labels: labels.includes(name) ? labels.filter((label) => label !== name) : [...labels, name] });
}

export function makeLabels(all) {
  const common = [...all].sort((a, b) => b.images - a.images).slice(0, CHIPS);
  const chips = new Set([...common.map((one) => one.name), ...read().labels]);
  const chip = ({ name, images }) => element("button", { type: "button", className: "chip", value: name, onclick: () => toggle(name) }, name, element("small", { textContent: images }));
  place.replaceChildren(...all.filter((one) => chips.has(one.name)).map(chip));
  const rest = all.filter((one) => !chips.has(one.name));
  if (rest.length) {
    const choice = element("select", { ariaLabel: "More labels" }, element("option", { value: "", textContent: `${rest.length} more labels …` }));
    choice.append(...rest.map(({ name, images }) => element("option", { value: name, textContent: `${name} ${images}` })));
    choice.addEventListener("change", () => {
      toggle(choice.value);
      makeLabels(all); // now it is a chip
      renderLabels(read());
    });
    place.append(choice);
  }
}

export function renderLabels(state) {
  for (const chip of place.querySelectorAll("button:not(.part, .clear)")) chip.setAttribute("aria-pressed", String(state.labels.includes(chip.value)));
  renderPart("selection", state.selection);
  renderPart("only", state.only);
  renderClear(isFiltered(state));
  place.hidden = !place.children.length;
}

// One chip that removes the whole filter, in front of the others.
function renderClear(filtered) {
  const chip = place.querySelector(".clear");
  if (!filtered) chip?.remove();
  else if (!chip) place.prepend(element("button", { type: "button", className: "chip clear", textContent: "Clear filter ×", onclick: () => go(NO_FILTER) }));
}

// A chip that removes one part of the filter: the selection, or "only those that are not labelled".
function renderPart(part, value) {
  let chip = place.querySelector(`.${part}`);
  if (!value) {
    chip?.remove();
    return;
  }
  if (!chip) {
    chip = element("button", { type: "button", className: `chip part ${part}`, onclick: () => go({ [part]: "" }) });
    chip.setAttribute("aria-pressed", "true");
    place.prepend(chip);
  }
  if (part === "selection") describe(chip, value);
  else nameChip(chip, ONLY[value] ?? value);
}

function nameChip(chip, name) {
  chip.textContent = `${name} ×`;
  chip.setAttribute("aria-label", `Remove from the filter: ${name}`);
}

async function describe(chip, key) {
  if (!names.has(key)) {
    names.set(key, "selection");
    const found = await api.selection(key).catch(() => ({ name: "a selection that is gone" }));
    names.set(key, found.images === undefined ? found.name : `${found.name} (${found.images.toLocaleString()})`);
  }
  nameChip(chip, names.get(key));
}
