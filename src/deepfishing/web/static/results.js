// Hits of one kernel: pictures with their score, its two halves and the classes behind it.

import { card, element } from "./card.js";

const show = (value) => (value === null || value === undefined ? "" : value.toFixed(2));

function bar(name, value, words) {
  const fill = element("i");
  fill.style.width = `${Math.max(0, Math.min(1, value)) * 100}%`;
  return element("span", { className: `bar ${name}`, title: words }, element("em", { textContent: name }), element("span", { className: "track" }, fill), element("b", { textContent: show(value) }));
}

export function skeleton(list, n) {
  list.replaceChildren(...Array.from({ length: n }, () => element("li", { className: "card skeleton" }, element("span", { className: "shot" }))));
}

export function fill(list, hits) {
  list.replaceChildren(
    ...hits.map((hit, rank) => {
      const made = card("li", hit, `: number ${rank + 1}, score ${show(hit.score)}`);
      const classes = hit.classes.slice(0, 2).map((one) => `${one.name} ${show(one.term)}`);
      made.append(
        element("span", { className: "score" }, element("b", { textContent: hit.score.toFixed(3) }), element("span", { className: "only", textContent: "only here", hidden: true })),
        element("span", { className: "bars" }),
        element("span", { className: "classes", textContent: classes.join(" · "), title: `Classes behind “means alike”: ${hit.classes.map((one) => `${one.name} ${show(one.term)}`).join(", ")}`, hidden: !classes.length }),
      );
      if (hit.labels.length) made.append(element("span", { className: "tags", textContent: hit.labels.join(", ") }));
      halves(made, hit.forward, hit.backward);
      return made;
    }),
  );
  const first = list.querySelector(".shot");
  for (const shot of list.querySelectorAll(".shot")) shot.tabIndex = shot === first ? 0 : -1;
}

function halves(made, forward, backward) {
  if (forward === null || backward === null || backward === undefined) return;
  made.querySelector(".bars").replaceChildren(bar("looks", forward, "how much they look alike: forward similarity"), bar("means", backward, "how much they mean alike: backward similarity"));
}

// What the two sides do not share; and both halves for the side whose kernel has only one.
export function compare(left, right, points) {
  const ids = (list) => new Set([...list.querySelectorAll("[data-id]")].map((one) => one.dataset.id));
  const sides = [left, right];
  const found = sides.map(ids);
  sides.forEach((list, side) => {
    for (const one of list.querySelectorAll("[data-id]")) {
      const other = found[1 - side];
      one.querySelector(".only").hidden = !other.size || other.has(one.dataset.id);
      const point = points?.get(one.dataset.id);
      if (point && !one.querySelector(".bar")) halves(one, ...point);
    }
  });
  return { forward: found[0], gradient: found[1] };
}

// The card that an arrow key leads to in a list of hits, by where they are on the screen.
export function neighbour(shot, key) {
  const shots = [...shot.closest(".columns").querySelectorAll(".card[data-id] .shot")];
  const from = shot.getBoundingClientRect();
  const x = from.left + from.width / 2;
  const y = from.top + from.height / 2;
  const sideways = key === "ArrowLeft" || key === "ArrowRight";
  const sign = key === "ArrowLeft" || key === "ArrowUp" ? -1 : 1;
  let best = null;
  let least = Infinity;
  for (const other of shots) {
    const box = other.getBoundingClientRect();
    const dx = box.left + box.width / 2 - x;
    const dy = box.top + box.height / 2 - y;
    const along = sign * (sideways ? dx : dy);
    const across = Math.abs(sideways ? dy : dx);
    if (along > 4 && along + 4 * across < least) [best, least] = [other, along + 4 * across];
  }
  return best;
}
