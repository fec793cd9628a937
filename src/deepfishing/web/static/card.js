// One picture with its buttons: the picture itself searches, + and − make it an example, and one
// enlarges it.

import { thumbnail } from "./api.js";

const ARROWS = "M14 4h6v6M20 4l-7 7M10 20H4v-6M4 20l7-7";

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export const shortName = (id) => id.split("/").pop();

// A photo that cannot be shown is reported, not hidden.
export function picture(src, alt = "") {
  const img = element("img", { alt, loading: "lazy", decoding: "async", draggable: false });
  img.addEventListener("error", () => img.hasAttribute("src") && img.parentElement?.classList.add("gone"));
  img.addEventListener("load", () => img.parentElement?.classList.add("loaded"));
  img.src = src;
  return img;
}

// A button that does something with the picture around it: see `clicked` in page.js.
export function action(name, words, label = words) {
  const button = element("button", { type: "button", title: words });
  button.dataset.action = name;
  button.setAttribute("aria-label", label);
  return button;
}

export function enlarger(id) {
  const button = action("enlarge", "Enlarge", `Enlarge ${shortName(id)}`);
  const icon = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  icon.setAttribute("viewBox", "0 0 24 24");
  icon.setAttribute("aria-hidden", "true");
  icon.append(document.createElementNS(icon.namespaceURI, "path"));
  icon.firstChild.setAttribute("d", ARROWS);
  button.append(icon);
  return button;
}

export function card(tag, { id, labels = [] }, description = "") {
  const words = [`Find pictures like ${shortName(id)}`, ...labels, description];
  const shot = action("search", id, words.filter(Boolean).join(", "));
  shot.className = "shot";
  shot.append(picture(thumbnail(id)));
  const signs = element("span", { className: "signs" });
  for (const [name, sign, words] of [["plus", "+", "More like"], ["minus", "−", "Not like"]]) {
    const button = action(name, `${words} this`, `${words} ${shortName(id)}`);
    button.textContent = sign;
    button.setAttribute("aria-pressed", "false");
    signs.append(button);
  }
  const select = action("select", "Select (X)", `Select ${shortName(id)}`);
  select.textContent = "✓";
  select.setAttribute("aria-pressed", "false");
  signs.append(select, enlarger(id));
  for (const button of signs.children) button.tabIndex = -1; // keys do the same
  const made = element(tag, { className: "card" }, element("div", { className: "frame" }, shot, signs));
  made.dataset.id = id;
  return made;
}

// Show which pictures are examples, and which are selected.
export function mark(root, like, unlike, selected = new Set()) {
  for (const one of root.querySelectorAll(".card[data-id], dialog[data-id]")) {
    const id = one.dataset.id;
    const state = { plus: like.some((e) => e.id === id), minus: unlike.some((e) => e.id === id), select: selected.has(id) };
    one.classList.toggle("is-plus", state.plus);
    one.classList.toggle("is-minus", state.minus);
    one.classList.toggle("is-selected", state.select);
    for (const button of one.querySelectorAll("[aria-pressed]")) {
      button.setAttribute("aria-pressed", String(state[button.dataset.action]));
    }
  }
}
