// What the page says about what happened: a notice for what went wrong, which stays, and a toast for
// what was done, which goes and may be undone.

import { element } from "./card.js";

const SECONDS = 6;
const box = document.querySelector("#notice");
const place = document.querySelector("#toast");
let timer = 0;

export function notice(text) {
  box.querySelector("p").textContent = text;
  box.hidden = !text;
}

export const isNoticeOpen = () => !box.hidden;

// `actions` are pairs of words and what a click does, such as ["Undo", undo].
export function toast(text, ...actions) {
  clearTimeout(timer);
  const buttons = actions.map(([words, act]) =>
    element("button", {
      type: "button",
      textContent: words,
      onclick: () => {
        hide();
        act();
      },
    }),
  );
  place.replaceChildren(element("span", { textContent: text }), ...buttons);
  place.classList.add("shown");
  timer = setTimeout(hide, SECONDS * 1000);
}

function hide() {
  place.classList.remove("shown");
  place.replaceChildren();
}

// An error in place of what was asked for, with a button that asks again.
export function failed(line, error, again) {
  line.classList.add("error");
  line.textContent = `${error.message} `;
  if (again) line.append(element("button", { type: "button", textContent: "Try again", onclick: again }));
}

document.querySelector("#notice button").addEventListener("click", () => notice(""));
