// The collection as a grid of which only what is on the screen exists: the page is as long as all
// pictures need, and cells are made and dropped while it scrolls.

import { card } from "./card.js";

const PAGE = 120;
const GAP = 8;
const AROUND = 2; // rows kept above and below the screen
const SETTLE = 60; // milliseconds: what has flown past by then is not loaded

function chips(labels) {
  const place = document.createElement("span");
  place.className = "card-labels";
  place.textContent = labels.join(", ");
  return place;
}

export class Grid {
  constructor(root, load, changed, signal) {
    Object.assign(this, { root, load, changed, total: 0, cells: new Map(), pages: new Map(), focus: 0, version: 0 });
    this.columns = 1;
    const resized = new ResizeObserver(() => this.layout());
    resized.observe(root.parentElement);
    signal.addEventListener("abort", () => resized.disconnect());
    addEventListener("scroll", () => this.schedule(), { passive: true, signal });
  }

  // Show another list of pictures.
  async reset() {
    this.version += 1;
    const version = this.version;
    this.pages.clear();
    const first = await this.load(0, PAGE);
    if (version !== this.version) return;
    this.clear();
    this.total = first.total;
    this.pages.set(0, first.images);
    this.focus = 0;
    this.layout();
  }

  layout() {
    const width = this.root.clientWidth;
    if (!width) return; // hidden
    this.columns = Math.max(3, Math.floor((width + GAP) / (150 + GAP)));
    this.size = (width - GAP * (this.columns - 1)) / this.columns;
    this.step = this.size + GAP;
    this.root.style.height = `${Math.max(0, Math.ceil(this.total / this.columns) * this.step - GAP)}px`;
    for (const [index, cell] of this.cells) this.place(index, cell);
    this.render();
  }

  schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.render();
    });
  }

  render() {
    if (!this.root.clientWidth) return;
    const [first, last] = this.visible();
    for (const index of [...this.cells.keys()]) {
      if ((index < first || index >= last) && this.cells.get(index) !== document.activeElement?.closest(".card")) this.drop(index);
    }
    let complete = true;
    for (let index = first; index < last; index += 1) {
      const known = this.pages.get(Math.floor(index / PAGE));
      if (!known) complete = false;
      else if (!this.cells.has(index) && known[index % PAGE]) this.make(index, known[index % PAGE]);
    }
    if (!complete && !this.timer) this.timer = setTimeout(() => this.fetchVisible(), SETTLE);
    this.changed();
  }

  // The first index on the screen and the one after the last, with some rows around.
  visible() {
    const top = -this.root.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(top / this.step) - AROUND) * this.columns;
    return [first, Math.min(this.total, (Math.ceil((top + innerHeight) / this.step) + AROUND) * this.columns)];
  }

  fetchVisible() {
    this.timer = 0;
    const [first, last] = this.visible();
    for (let page = Math.floor(first / PAGE); page * PAGE < last; page += 1) this.fetch(page);
  }

  async fetch(page) {
    if (this.pages.has(page)) return;
    const version = this.version;
    this.pages.set(page, null); // asked for
    try {
      const found = await this.load(page * PAGE, PAGE);
      if (version !== this.version) return;
      this.pages.set(page, found.images);
      this.render();
    } catch {
      if (version === this.version) this.pages.delete(page); // the next scroll asks again
    }
  }

  // The picture with a number, wherever it is.
  async image(index) {
    const known = this.pages.get(Math.floor(index / PAGE));
    return known ? known[index % PAGE] : (await this.load(index, 1)).images[0];
  }

  make(index, image) {
    const cell = card("div", image);
    cell.setAttribute("role", "listitem");
    cell.setAttribute("aria-setsize", this.total);
    cell.setAttribute("aria-posinset", index + 1);
    cell.dataset.index = index;
    if (image.labels.length) cell.append(chips(image.labels));
    if (image.group && image.group !== this.before(index)) cell.append(Object.assign(document.createElement("span"), { className: "caption", textContent: image.group }));
    cell.querySelector(".shot").tabIndex = index === this.focus ? 0 : -1;
    this.place(index, cell);
    this.cells.set(index, cell);
    this.root.append(cell);
  }

  // The group of the picture before, if it is known.
  before(index) {
    const at = index - 1;
    return this.pages.get(Math.floor(at / PAGE))?.[at % PAGE]?.group;
  }

  // The numbers of the pictures that a rectangle on the screen touches.
  touched({ left, top, right, bottom }) {
    const box = this.root.getBoundingClientRect();
    const found = [];
    const first = Math.max(0, Math.floor((top - box.top) / this.step));
    const last = Math.floor((bottom - box.top) / this.step);
    for (let row = first; row <= last; row += 1) {
      for (let column = 0; column < this.columns; column += 1) {
        const x = box.left + column * this.step;
        const index = row * this.columns + column;
        if (x < right && x + this.size > left && index < this.total) found.push(index);
      }
    }
    return found;
  }

  place(index, cell) {
    const x = (index % this.columns) * this.step;
    const y = Math.floor(index / this.columns) * this.step;
    Object.assign(cell.style, { width: `${this.size}px`, height: `${this.size}px`, transform: `translate(${x}px, ${y}px)` });
  }

  drop(index) {
    const cell = this.cells.get(index);
    cell.querySelector("img").removeAttribute("src"); // stops what is still loading
    cell.remove();
    this.cells.delete(index);
  }

  clear() {
    for (const index of [...this.cells.keys()]) this.drop(index);
  }

  // Move the focus to a picture, wherever it is.
  async focusOn(index) {
    if (!this.total) return;
    const old = this.cells.get(this.focus);
    if (old) old.querySelector(".shot").tabIndex = -1;
    this.focus = Math.min(Math.max(index, 0), this.total - 1);
    const y = Math.floor(this.focus / this.columns) * this.step + this.root.getBoundingClientRect().top;
    const above = document.querySelector(".top").offsetHeight + 8;
    const below = innerHeight - document.querySelector(".bottom").offsetHeight - 16;
    if (y < above) scrollBy(0, y - above);
    else if (y + this.size > below) scrollBy(0, y + this.size - below);
    await this.fetch(Math.floor(this.focus / PAGE));
    this.render();
    const shot = this.cells.get(this.focus)?.querySelector(".shot");
    if (shot) {
      shot.tabIndex = 0;
      shot.focus({ preventScroll: true });
    }
  }

  // The index that an arrow key leads to, or null.
  next(key) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    if (key === "Home") return 0;
    if (key === "End") return this.total - 1;
    const to = this.focus + (steps[key] ?? NaN);
    return to >= 0 && to < this.total ? to : null;
  }
}
