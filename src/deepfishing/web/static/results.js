// Hits of one kernel: pictures with their name, their score, its two halves and the classes behind.

import * as api from "./api.js";
import { card, element, shortName } from "./card.js";
import { notice } from "./messages.js";
import { go, NO_FILTER } from "./state.js";

const show = (value) => (value === null || value === undefined ? "" : value.toFixed(2));

function bar(name, value, words) {
  const fill = element("i");
  fill.style.width = `${Math.max(0, Math.min(1, value)) * 100}%`;
  return element("span", { className: `bar ${name}`, title: words }, element("em", { textContent: name }), element("span", { className: "track" }, fill), element("b", { textContent: show(value) }));
}

// Why a picture was found: how much it looks alike, how much it means alike, and the things that
// make up the latter, which add up to it.
export function reason({ score, forward, backward, classes = [] }) {
  if (score === undefined) return [];
  const made = [element("span", { className: "score" }, element("b", { textContent: score.toFixed(3) }), element("span", { className: "only", textContent: "only here", hidden: true }))];
  if (forward !== null && backward !== null && backward !== undefined) {
    made.push(bar("looks", forward, "how much the two pictures look alike"), bar("means", backward, "how much they mean alike"));
  }
  if (classes.length) {
    const rest = backward - classes.reduce((sum, one) => sum + one.term, 0);
    const row = (name, term) => element("li", {}, element("span", { textContent: name }), element("b", { textContent: show(term) }));
    const list = element("ul", { className: "classes", title: "the things that both are taken for: their parts of “means”" }, ...classes.map((one) => row(one.name, one.term)));
    if (Math.abs(rest) >= 0.005) list.append(row("all others", rest));
    made.push(list);
  }
  return made;
}

export function skeleton(list, n) {
  list.replaceChildren(...Array.from({ length: n }, () => element("li", { className: "card skeleton" }, element("span", { className: "shot" }))));
}

export function fill(list, hits) {
  list.replaceChildren(
    ...hits.map((hit, rank) => {
      const made = card("li", hit, `number ${rank + 1}, score ${show(hit.score)}`);
      made.append(element("span", { className: "name", textContent: shortName(hit.id) }));
      if (hit.labels.length) made.append(element("span", { className: "tags", textContent: hit.labels.join(", ") }));
      if (hit.similar?.length) made.append(similarOnes(hit));
      made.append(element("div", { className: "why" }, ...reason(hit)));
      return made;
    }),
  );
  const first = list.querySelector(".shot");
  for (const shot of list.querySelectorAll(".shot")) shot.tabIndex = shot === first ? 0 : -1;
}

// A hit stands for its copies and similar scenes; a button leads to all of them.
function similarOnes(hit) {
  const ids = [hit.id, ...hit.similar];
  const words = `${hit.similar.length} more like this`;
  const showAll = async () => {
    try {
      const { selection } = await api.select(ids, `copies of ${shortName(hit.id)} and similar ones`);
      go({ like: [], unlike: [], ...NO_FILTER, selection });
    } catch (error) {
      notice(error.message);
    }
  };
  return element("button", { type: "button", className: "chip similar", textContent: `+${words}`, title: "Copies and similar scenes: show them all", onclick: showAll });
}

// What the two sides do not share; and how much hits of the side without gradients mean alike.
export function compare(sides, points) {
  const found = sides.map(({ hits }) => new Set(hits.flatMap((hit) => [hit.id, ...(hit.similar ?? [])])));
  sides.forEach(({ list, hits }, side) => {
    const byId = new Map(hits.map((hit) => [hit.id, hit]));
    for (const one of list.querySelectorAll("[data-id]")) {
      const hit = byId.get(one.dataset.id);
      const point = points?.get(one.dataset.id);
      if (point && hit && hit.backward === null) {
        hit.backward = point[1];
        one.querySelector(".why").replaceChildren(...reason(hit));
      }
      const other = found[1 - side];
      one.querySelector(".only").hidden = !other.size || other.has(one.dataset.id);
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
