// Labels as chips that are pressed or not, the most common ones; the rest in a list.

import { element } from "./card.js";
import { go, read } from "./state.js";

const CHIPS = 40;
const place = document.querySelector("#labels");

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
      renderLabels(read().labels);
    });
    place.append(choice);
  }
  place.hidden = !all.length;
}

export function renderLabels(chosen) {
  for (const chip of place.querySelectorAll("button")) chip.setAttribute("aria-pressed", String(chosen.includes(chip.value)));
}
