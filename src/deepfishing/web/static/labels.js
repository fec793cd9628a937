// The filter as chips: the most common labels, the rest in a list, and the selection of another view.

import * as api from "./api.js";
import { element } from "./card.js";
import { go, isFiltered, NO_FILTER, read } from "./state.js";

const CHIPS = 40;
const place = document.querySelector("#labels");
const names = new Map(); // of selections, by key

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

export function renderLabels({ labels, text, selection }) {
  for (const chip of place.querySelectorAll("button:not(.selection, .clear)")) chip.setAttribute("aria-pressed", String(labels.includes(chip.value)));
  renderSelection(selection);
  renderClear(isFiltered({ labels, text, selection }));
  place.hidden = !place.children.length;
}

// One chip that removes the whole filter, in front of the others.
function renderClear(filtered) {
  const chip = place.querySelector(".clear");
  if (!filtered) chip?.remove();
  else if (!chip) place.prepend(element("button", { type: "button", className: "chip clear", textContent: "Clear filter ×", onclick: () => go(NO_FILTER) }));
}

function renderSelection(selection) {
  let chip = place.querySelector(".selection");
  if (!selection) {
    chip?.remove();
    return;
  }
  if (!chip) {
    chip = element("button", { type: "button", className: "chip selection", textContent: "selection", onclick: () => go({ selection: "" }) });
    chip.setAttribute("aria-pressed", "true");
    place.prepend(chip);
  }
  describe(chip, selection);
}

async function describe(chip, key) {
  if (!names.has(key)) {
    names.set(key, "selection");
    const found = await api.selection(key).catch(() => ({ name: "a selection that is gone" }));
    names.set(key, found.images === undefined ? found.name : `${found.name} (${found.images.toLocaleString()})`);
  }
  chip.textContent = `${names.get(key)} ×`;
  chip.setAttribute("aria-label", `Remove the selection: ${names.get(key)}`);
}
