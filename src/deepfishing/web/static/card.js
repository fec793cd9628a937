// One picture with its buttons: a click searches with it, + and − make it an example.

import { thumbnail } from "./api.js";

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export const shortName = (id) => id.split("/").pop();

// A photo that cannot be shown is told, not hidden.
export function picture(src, alt = "") {
  const img = element("img", { alt, loading: "lazy", decoding: "async", draggable: false });
  img.addEventListener("error", () => img.hasAttribute("src") && img.parentElement?.classList.add("gone"));
  img.addEventListener("load", () => img.parentElement?.classList.add("loaded"));
  img.src = src;
  return img;
}

export function card(tag, { id, labels = [] }, description = "") {
  const names = labels.length ? `${labels.join(", ")}, ` : "";
  const shot = element("button", { className: "shot", type: "button", title: id });
  shot.dataset.action = "search";
  shot.setAttribute("aria-label", `${names}${shortName(id)}${description}`);
  shot.append(picture(thumbnail(id)));
  const signs = element("span", { className: "signs" });
  for (const [action, sign, words] of [["plus", "+", "More like"], ["minus", "−", "Not like"]]) {
    const button = element("button", { type: "button", textContent: sign, title: `${words} this`, tabIndex: -1 });
    button.dataset.action = action;
    button.setAttribute("aria-label", `${words} ${shortName(id)}`);
    button.setAttribute("aria-pressed", "false");
    signs.append(button);
  }
  const made = element(tag, { className: "card" }, shot, signs);
  made.dataset.id = id;
  return made;
}

// Show which pictures are examples.
export function mark(root, like, unlike) {
  for (const one of root.querySelectorAll(".card[data-id]")) {
    const id = one.dataset.id;
    const state = { plus: like.some((e) => e.id === id), minus: unlike.some((e) => e.id === id) };
    one.classList.toggle("is-plus", state.plus);
    one.classList.toggle("is-minus", state.minus);
    for (const button of one.querySelectorAll(".signs button")) {
      button.setAttribute("aria-pressed", String(state[button.dataset.action]));
    }
  }
}
