// Long work of the server: how far it is, and a button that ends it.

import * as api from "./api.js";
import { element } from "./card.js";
import { failed } from "./messages.js";

const AGAIN = 500; // milliseconds until the server is asked again

// Show a job in an element until it has ended. `ended` is called with the job then; `again` starts
// it once more, after it failed.
export async function follow(place, name, words, { signal, ended, again }) {
  const bar = element("progress", { max: 1 });
  bar.setAttribute("aria-label", words);
  const line = element("span", { className: "soft" });
  const stop = element("button", { type: "button", textContent: "Cancel", onclick: () => api.cancelJob(name).catch(() => {}) });
  const shown = element("p", { className: "work" }, element("b", { textContent: words }), bar, line, stop);
  shown.setAttribute("role", "status");
  place.replaceChildren(shown);
  place.hidden = false;
  for (;;) {
    let job;
    try {
      job = await api.job(name);
    } catch (error) {
      job = { state: "failed", error: error.message };
    }
    if (signal.aborted) return;
    if (job.state === "running") {
      if (job.total) bar.value = job.done / job.total;
      else bar.removeAttribute("value");
      line.textContent = [job.stage, job.total > 1 ? `${job.done.toLocaleString()} of ${job.total.toLocaleString()}` : ""].filter(Boolean).join(" ");
      await new Promise((done) => setTimeout(done, AGAIN));
      continue;
    }
    place.replaceChildren();
    place.hidden = true;
    if (job.state === "failed") {
      const said = element("p");
      failed(said, { message: job.error }, again);
      place.append(said);
      place.hidden = false;
    }
    ended(job);
    return;
  }
}
