// How much the pictures of the collection look like the query, against how much they mean alike; with
// lines along which the score is the same, where it is the product of the two.

import { shortName } from "./card.js";
import { thumbnail } from "./api.js";

const EDGE = { left: 34, right: 8, top: 8, bottom: 30 };
const REACH = 14; // pixels around a point that count as on it

export class Scatter {
  constructor(figure, choose, signal) {
    this.figure = figure;
    this.canvas = figure.querySelector("canvas");
    this.tip = figure.querySelector(".tip");
    this.choose = choose;
    this.clear();
    const resized = new ResizeObserver(() => this.draw());
    resized.observe(this.canvas);
    signal.addEventListener("abort", () => resized.disconnect());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(), { signal });
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.canvas.addEventListener("click", (event) => {
      const before = this.over;
      this.hover(event);
      // a finger has no hover: the first touch shows, the second one chooses
      if (this.over !== null && (event.pointerType !== "touch" || before === this.over)) this.choose(this.ids[this.over]);
    });
  }

  clear() {
    Object.assign(this, { ids: [], forward: [], backward: [], found: { forward: new Set(), gradient: new Set() }, over: null });
    this.tip.hidden = true;
  }

  // Points without those of the examples themselves, which would all be at (1, 1).
  set({ ids, forward, backward, total, is_product: isProduct }, examples) {
    this.isProduct = isProduct;
    const keep = ids.map((_, i) => i).filter((i) => !examples.has(ids[i]) && forward[i] !== null && backward[i] !== null);
    this.ids = keep.map((i) => ids[i]);
    this.forward = keep.map((i) => forward[i]);
    this.backward = keep.map((i) => backward[i]);
    const shown = ids.length < total ? `${ids.length.toLocaleString()} of ${total.toLocaleString()}` : `${total.toLocaleString()}`;
    this.canvas.setAttribute("aria-label", `Plot of ${shown} pictures: how much they look like the query, from left to right, and how much they mean the same, upwards. The lists of results say the same in numbers.`);
    this.draw();
  }

  highlight(found) {
    this.found = found;
    this.draw();
  }

  range(values) {
    let low = Infinity;
    let high = -Infinity;
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (!(low < high)) [low, high] = [low - 0.05 || 0, (high || 0) + 0.05];
    const margin = 0.05 * (high - low);
    return [low - margin, Math.min(high + margin, 1.02)];
  }

  draw() {
    const { width, height } = this.canvas.getBoundingClientRect();
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(this.figure);
    const colour = (name) => style.getPropertyValue(name).trim();
    pen.font = `11px ${style.fontFamily}`;
    if (!this.ids.length) return;
    const [x0, x1] = this.range(this.forward);
    const [y0, y1] = this.range(this.backward);
    const inner = { width: width - EDGE.left - EDGE.right, height: height - EDGE.top - EDGE.bottom };
    this.x = (value) => EDGE.left + ((value - x0) / (x1 - x0)) * inner.width;
    this.y = (value) => EDGE.top + (1 - (value - y0) / (y1 - y0)) * inner.height;
    this.axes(pen, [x0, x1], [y0, y1], inner, colour);
    if (this.isProduct) this.levels(pen, [x0, x1], [y0, y1], inner, colour);
    this.points(pen, colour);
  }

  axes(pen, [x0, x1], [y0, y1], inner, colour) {
    const bottom = EDGE.top + inner.height;
    pen.strokeStyle = colour("--rule");
    pen.strokeRect(EDGE.left + 0.5, EDGE.top + 0.5, inner.width - 1, inner.height - 1);
    pen.fillStyle = colour("--soft");
    pen.textAlign = "center";
    for (const value of ticks(x0, x1)) pen.fillText(value.toFixed(1), this.x(value), bottom + 13);
    pen.fillText("looks alike →", EDGE.left + inner.width / 2, bottom + 26);
    pen.textAlign = "right";
    for (const value of ticks(y0, y1)) pen.fillText(value.toFixed(1), EDGE.left - 4, this.y(value) + 4);
    pen.save();
    pen.translate(9, EDGE.top + inner.height / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText("means alike →", 0, 0);
    pen.restore();
  }

  // forward * backward = level, so backward = level / forward
  levels(pen, [x0, x1], [y0, y1], inner, colour) {
    pen.save();
    pen.beginPath();
    pen.rect(EDGE.left, EDGE.top, inner.width, inner.height);
    pen.clip();
    pen.setLineDash([3, 4]);
    pen.strokeStyle = colour("--line");
    pen.fillStyle = colour("--soft");
    pen.textAlign = "right";
    const least = Math.max(x0, 0) * Math.max(y0, 0);
    const most = Math.max(x1, 0) * Math.max(y1, 0);
    const apart = [0.02, 0.05, 0.1, 0.2].find((step) => (most - least) / step <= 6) ?? 0.25;
    for (let n = Math.floor(least / apart) + 1; n * apart < most; n += 1) {
      const level = n * apart;
      pen.beginPath();
      for (let i = 0; i <= 60; i += 1) {
        const forward = Math.max(x0, 1e-3) + ((x1 - Math.max(x0, 1e-3)) * i) / 60;
        pen.lineTo(this.x(forward), this.y(level / forward));
      }
      pen.stroke();
      const end = level / x1;
      if (this.y(end) > EDGE.top + 14 && end > y0) pen.fillText(level.toFixed(2), EDGE.left + inner.width - 3, this.y(end) - 3);
    }
    pen.restore();
  }

  points(pen, colour) {
    const late = [];
    pen.fillStyle = colour("--point");
    this.ids.forEach((id, i) => {
      if (this.found.forward.has(id) || this.found.gradient.has(id) || i === this.over) late.push(i);
      else pen.fillRect(this.x(this.forward[i]) - 1.5, this.y(this.backward[i]) - 1.5, 3, 3);
    });
    for (const i of late) {
      const both = [this.found.forward.has(this.ids[i]), this.found.gradient.has(this.ids[i])];
      pen.beginPath();
      pen.arc(this.x(this.forward[i]), this.y(this.backward[i]), i === this.over ? 7 : 4.5, 0, 2 * Math.PI);
      pen.fillStyle = both[1] ? colour("--accent") : colour("--panel");
      pen.strokeStyle = both[0] ? colour("--ink") : colour("--accent");
      pen.lineWidth = 1.6;
      pen.fill();
      pen.stroke();
    }
    pen.lineWidth = 1;
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let best = null;
    let least = REACH;
    this.ids.forEach((id, i) => {
      const away = Math.hypot(this.x(this.forward[i]) - x, this.y(this.backward[i]) - y);
      // hits lie on top, so they are reached first
      const near = away - (this.found.gradient.has(id) || this.found.forward.has(id) ? 2 : 0);
      if (near < least) [best, least] = [i, near];
    });
    this.canvas.style.cursor = best === null ? "default" : "pointer";
    if (best === this.over) return;
    this.over = best;
    this.draw();
    this.tip.hidden = best === null;
    if (best === null) return;
    const [forward, backward] = [this.forward[best], this.backward[best]];
    this.tip.querySelector("img").src = thumbnail(this.ids[best]);
    this.tip.querySelector("span").textContent = `${shortName(this.ids[best])}: looks ${forward.toFixed(2)}, means ${backward.toFixed(2)}`;
    const left = this.x(forward) + box.left;
    const top = this.y(backward) + box.top;
    this.tip.style.left = `${Math.max(4, Math.min(left + 12, document.documentElement.clientWidth - 172))}px`;
    this.tip.style.top = `${top + 190 < innerHeight ? top + 14 : top - 180}px`;
  }

  leave() {
    if (this.over === null) return;
    this.over = null;
    this.tip.hidden = true;
    this.draw();
  }
}

function ticks(low, high) {
  const found = [];
  const step = high - low > 0.5 ? 0.2 : 0.1;
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) found.push(value);
  return found;
}
