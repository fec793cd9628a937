// While a folder of photos is read: how far that is, and buttons to stop and to go on.

import * as api from "./api.js";
import { element } from "./card.js";
import { failed } from "./messages.js";

const AGAIN = 500; // milliseconds
const STAGES = { scanning: "Looking at the files", images: "Reading the photos", opening: "Opening the collection", index: "Making the index" };

export function showOpening(place) {
  const title = element("h1", { textContent: "Reading the photos" });
  const where = element("p", { className: "soft" });
  const bar = element("progress", { ariaLabel: "Photos read" });
  const line = element("p");
  line.setAttribute("role", "status");
  const buttons = element("p", { className: "acts" });
  document.body.classList.add("is-opening"); // there is nothing to search or filter yet
  place.replaceChildren(element("section", { className: "opening" }, title, where, bar, line, buttons));
  let shown = "";

  const button = (words, ask, primary = false) =>
    element("button", {
      type: "button",
      textContent: words,
      className: primary ? "primary" : "",
      onclick: async () => {
        await ask().catch((error) => failed(line, error));
        shown = "";
        watch();
      },
    });

  function render({ name, is_beside: isBeside, job }) {
    document.title = `${name} – deepfishing`;
    where.textContent = `The photos in the folder “${name}” stay where they are. Features and labels are kept ${isBeside ? "beside them, in .deepfishing" : "in your data folder"}.`;
    title.textContent = STAGES[job.stage] ?? STAGES.images;
    if (job.total) Object.assign(bar, { max: job.total, value: job.done });
    else bar.removeAttribute("value");
    line.classList.toggle("error", job.state === "failed");
    line.textContent = words(job);
    if (shown === job.state) return;
    shown = job.state;
    if (job.state === "running") buttons.replaceChildren(button("Cancel", api.cancelOpening));
    else buttons.replaceChildren(button("Resume", api.resumeOpening, true), button("Show what has been read", api.showOpened));
  }

  function words(job) {
    if (job.state === "failed") return `${job.error}.`;
    const count = job.total ? `${job.done.toLocaleString()} of ${job.total.toLocaleString()}` : "";
    if (job.state === "cancelled") return `Stopped${count ? ` at ${count}` : ""}. Nothing that was read is lost.`;
    if (job.stage !== "images" || job.done < 20) return count;
    const left = ((job.stage_seconds ?? job.seconds) / job.done) * (job.total - job.done);
    return `${count}, ${left < 90 ? `about ${Math.max(1, Math.round(left))} seconds` : `about ${Math.round(left / 60)} minutes`} left`;
  }

  let timer = 0;
  async function watch() {
    clearTimeout(timer);
    try {
      const state = await api.opening();
      if (state.is_ready) {
        location.reload();
        return;
      }
      render(state);
    } catch (error) {
      failed(line, error);
    }
    timer = setTimeout(watch, AGAIN);
  }
  watch();
}
