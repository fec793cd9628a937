// One picture, large: its name, its labels, why it was found, and what can be done with it. Arrow
// keys, swipes and two buttons lead to its neighbours, Escape leads back. All views share it.

import { thumbnail } from "./api.js";
import { element } from "./card.js";
import { reason } from "./results.js";
import { FIRST_VIEW, go } from "./state.js";

const SWIPE = 50; // pixels that a finger must move sideways

const nothing = () => {};

class Lightbox {
  constructor(dialog) {
    Object.assign(this, { dialog, shown: nothing, closed: nothing, at: 0, count: 0 });
    const find = (selector) => dialog.querySelector(selector);
    Object.assign(this, { stage: find(".stage"), name: find("h2"), about: find(".about"), place: find(".place"), file: find(".file") });
    [this.before, this.after] = [find(".before"), find(".after")];
    this.before.addEventListener("click", () => this.step(-1));
    this.after.addEventListener("click", () => this.step(1));
    find(".close").addEventListener("click", () => dialog.close());
    find("[data-action=search]").addEventListener("click", () => this.search(dialog.dataset.id));
    dialog.addEventListener("close", () => this.closed(this.at));
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // beside it
    dialog.addEventListener("keydown", (event) => this.pressed(event));
    let start = 0;
    this.stage.addEventListener("touchstart", (event) => (start = event.changedTouches[0].clientX), { passive: true });
    this.stage.addEventListener("touchend", (event) => {
      const moved = event.changedTouches[0].clientX - start;
      if (Math.abs(moved) > SWIPE) this.step(moved < 0 ? 1 : -1);
    });
  }

  get isOpen() {
    return this.dialog.open;
  }

  // `load` gives the image with a number below `count`. `closed` is called with the number of the last
  // one, to put the focus there; `shown` for each. `marks`: with the buttons + and −, for Photos.
  async open(load, count, at, { closed = nothing, shown = nothing, marks = false } = {}) {
    Object.assign(this, { load, count, closed, shown });
    for (const button of this.dialog.querySelectorAll("[data-action=plus], [data-action=minus]")) button.hidden = !marks;
    await this.show(at);
    if (!this.isOpen) this.dialog.showModal();
  }

  // Close it and search for pictures like this one.
  search(id) {
    this.closed = nothing; // the focus does not go back to a picture that is about to go
    this.dialog.close();
    go({ view: FIRST_VIEW, like: [{ id }], unlike: [] });
  }

  step(by) {
    const to = this.at + by;
    if (to >= 0 && to < this.count) this.show(to);
  }

  async show(at) {
    this.at = at;
    const image = await Promise.resolve(this.load(at)).catch(() => null);
    if (at !== this.at || !image) return; // gone further meanwhile, or the server does not answer
    const { id, labels } = image;
    this.dialog.dataset.id = id;
    this.name.textContent = id;
    const img = element("img", { alt: labels.length ? labels.join(", ") : id });
    this.stage.classList.remove("gone");
    img.addEventListener("error", () => this.stage.classList.add("gone"));
    img.src = thumbnail(id, "large");
    this.stage.querySelector("img").replaceWith(img);
    this.place.textContent = this.count > 1 ? `${(at + 1).toLocaleString()} of ${this.count.toLocaleString()}` : "";
    this.before.disabled = at === 0;
    this.after.disabled = at >= this.count - 1;
    this.file.href = thumbnail(id, "full");
    this.about.replaceChildren(...(labels.length ? [element("p", { className: "tags", textContent: labels.join(", ") })] : []), ...reason(image));
    this.shown();
  }

  pressed(event) {
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (by) {
      event.preventDefault();
      this.step(by);
    } else if (event.key === "+" || event.key === "-") {
      this.dialog.querySelector(`[data-action=${event.key === "+" ? "plus" : "minus"}]`).click();
    }
    event.stopPropagation(); // the page behind does not move
  }
}

export const lightbox = new Lightbox(document.querySelector("#lightbox"));
