// The panel beside the photos: how many have which label, and how many have none. A click shows only
// those; with Ctrl a label is added to the filter.

import * as api from "./api.js";
import { element } from "./card.js";
import { ONLY } from "./labels.js";
import { go, NO_FILTER } from "./state.js";

const OPEN = "labels-panel"; // remembered by the browser
const NARROW = "(max-width: 900px)";

export class Side {
  constructor(place, signal) {
    Object.assign(this, { place, signal, asked: "" });
    const kept = localStorage.getItem(OPEN);
    place.open = !matchMedia(NARROW).matches && kept !== "closed";
    place.addEventListener("toggle", () => {
      if (!matchMedia(NARROW).matches) localStorage.setItem(OPEN, place.open ? "open" : "closed");
    });
  }

  // Count the photos that pass the text and the selection of a filter, and show its labels.
  async update(state) {
    const filter = { ...NO_FILTER, text: state.text, selection: state.selection };
    const asked = (this.asked = JSON.stringify([filter, state.labels, state.only]));
    try {
      const counts = await api.labelCounts(filter, this.signal);
      if (asked === this.asked) this.render(counts, state);
    } catch {
      // the grid says what is wrong
    }
  }

  render({ images, labelled, none, classes }, state) {
    const percent = images ? Math.floor((100 * labelled) / images) : 0;
    this.place.querySelector("summary span").textContent = `${labelled.toLocaleString()} of ${images.toLocaleString()}`;
    const bar = this.place.querySelector("progress");
    Object.assign(bar, { max: images || 1, value: labelled, title: `${percent} %` });
    const most = Math.max(1, ...classes.map((one) => one.images));
    const states = [
      ["unlabelled", images - labelled],
      ["labelled", labelled],
      ["none", none],
    ];
    const focused = document.activeElement?.closest("#side button")?.value;
    this.place.querySelector(".states").replaceChildren(...states.map(([name, n]) => row(ONLY[name], name, n, state.only === name, () => this.only(name, state))));
    this.place.querySelector(".counts").replaceChildren(
      ...classes.map(({ name, images: n }) => row(name, name, n, state.labels.includes(name), (event) => this.label(name, state, event), n / most)),
    );
    this.place.querySelector(".nothing").hidden = classes.length > 0;
    this.place.querySelector(".button").classList.toggle("primary", !classes.length);
    if (focused) [...this.place.querySelectorAll("button")].find((one) => one.value === focused)?.focus();
  }

  only(name, state) {
    go({ labels: [], only: state.only === name ? "" : name });
  }

  label(name, { labels }, event) {
    const isThere = labels.includes(name);
    const isAdded = event.ctrlKey || event.metaKey;
    const others = isAdded ? labels.filter((one) => one !== name) : [];
    go({ labels: isThere ? others : [...others, name], only: "" });
  }
}

// A row of the panel; `share` is the length of its bar.
function row(words, value, count, isPressed, act, share = 0) {
  const button = element("button", { type: "button", value, onclick: act }, element("span", { textContent: words }), element("small", { textContent: count.toLocaleString() }));
  button.setAttribute("aria-pressed", String(isPressed));
  button.style.setProperty("--share", share);
  button.classList.toggle("empty", !count);
  return element("li", {}, button);
}
