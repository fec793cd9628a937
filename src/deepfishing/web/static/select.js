// Several pictures of the grid at once: by a tick, a range with Shift, a rectangle, or keys. They can
// be labelled together, or become the filter of all views.

import * as api from "./api.js";
import { element } from "./card.js";
import { meantClass } from "./labels.js";
import { notice, toast } from "./messages.js";
import { go } from "./state.js";

const DRAG = 6; // pixels that the mouse must move before it draws a rectangle
const MOST = 5000; // that the server labels by name at once

export class Picker {
  // `changed` is called when the selection is another; `labelled` when labels are; `known` gives the
  // names of all classes.
  constructor(grid, bar, { changed, labelled, known, signal }) {
    Object.assign(this, { grid, bar, changed, labelled, known, selected: new Set(), anchor: null });
    const find = (selector) => bar.querySelector(selector);
    find("#picked-only").addEventListener("click", () => this.filter("photos"));
    find("#picked-group").addEventListener("click", () => this.filter("label"));
    find("#picked-clear").addEventListener("click", () => this.clear());
    find("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.label(meantClass(find("input").value, this.known()));
    });
    find("input").addEventListener("focus", () => {
      find("datalist").replaceChildren(...this.known().map((value) => element("option", { value })));
    });
    this.root = grid.root;
    this.root.addEventListener("pointerdown", (event) => this.down(event), { signal });
    addEventListener("pointermove", (event) => this.move(event), { signal });
    addEventListener("pointerup", () => this.up(), { signal });
    this.root.addEventListener("click", (event) => this.swallow(event), { capture: true, signal });
  }

  toggle(id, index) {
    if (this.selected.has(id)) this.selected.delete(id);
    else this.selected.add(id);
    this.anchor = index;
    this.show();
  }

  // Select all pictures from the last one that was chosen to this one.
  async range(to) {
    const from = this.anchor ?? to;
    const [first, last] = [Math.min(from, to), Math.max(from, to)];
    await this.add(Array.from({ length: last - first + 1 }, (_, n) => first + n));
  }

  async add(indices) {
    if (indices.length > MOST) {
      notice(`At most ${MOST.toLocaleString()} pictures can be selected one by one; use a filter.`);
      return;
    }
    try {
      const images = await Promise.all(indices.map((index) => this.grid.image(index)));
      for (const image of images) if (image) this.selected.add(image.id);
      this.show();
    } catch (error) {
      notice(error.message);
    }
  }

  clear() {
    this.selected.clear();
    this.anchor = null;
    this.show();
  }

  show() {
    const n = this.selected.size;
    this.bar.hidden = !n;
    this.bar.querySelector("p").textContent = `${n.toLocaleString()} selected`;
    this.changed();
  }

  async filter(view) {
    try {
      const made = await api.select([...this.selected], `${this.selected.size} selected`);
      this.clear();
      go({ view, like: [], unlike: [], selection: made.selection, show: view === "label" ? "group" : "" });
    } catch (error) {
      notice(error.message);
    }
  }

  async label(name) {
    if (!name) return;
    try {
      const ids = [...this.selected];
      const { act, changed } = await api.changeLabels({ ids, labels: [name] });
      this.clear();
      this.bar.querySelector("input").value = "";
      this.labelled();
      const undo = () => api.undoLabels(act).then(this.labelled, (error) => notice(error.message));
      toast(`${changed.toLocaleString()} pictures are ${name} now.`, ...(act ? [["Undo", undo]] : []));
    } catch (error) {
      notice(error.message);
    }
  }

  // ---- a rectangle ----

  down(event) {
    this.dragged = false;
    if (event.pointerType !== "mouse" || event.button !== 0) return;
    this.start = { x: event.clientX, y: event.clientY + scrollY };
  }

  move(event) {
    if (!this.start) return;
    const now = { x: event.clientX, y: event.clientY + scrollY };
    if (!this.frame && Math.hypot(now.x - this.start.x, now.y - this.start.y) < DRAG) return;
    if (!this.frame) {
      this.frame = document.createElement("div");
      this.frame.className = "rectangle";
      document.body.append(this.frame);
      document.body.classList.add("dragging");
    }
    this.box = {
      left: Math.min(this.start.x, now.x),
      right: Math.max(this.start.x, now.x),
      top: Math.min(this.start.y, now.y) - scrollY,
      bottom: Math.max(this.start.y, now.y) - scrollY,
    };
    const { left, right, top, bottom } = this.box;
    Object.assign(this.frame.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
  }

  up() {
    this.start = null;
    if (!this.frame) return;
    this.frame.remove();
    this.frame = null;
    document.body.classList.remove("dragging");
    this.dragged = true; // the click that follows is no click
    setTimeout(() => (this.dragged = false));
    this.add(this.grid.touched(this.box));
  }

  // A click after a rectangle, or one with Shift, does not search.
  swallow(event) {
    const card = event.target.closest(".card");
    const asksRange = event.shiftKey && card;
    if (!this.dragged && !asksRange) return;
    event.preventDefault();
    event.stopPropagation();
    if (!this.dragged) this.range(Number(card.dataset.index));
  }
}
