// What the page asks the server. Every failure is an Error whose message can be shown.

const TRIES = 5;

const wait = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

async function ask(path, options = {}) {
  for (let attempt = 1; ; attempt += 1) {
    let response;
    try {
      response = await fetch(path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server does not answer. Is deepfish serve still running?");
    }
    if (response.ok) return response.json();
    if (response.status === 503 && response.headers.has("Retry-After") && attempt < TRIES) {
      await wait(Number(response.headers.get("Retry-After")) * attempt * (0.5 + Math.random()));
      continue;
    }
    const answer = await response.json().catch(() => ({}));
    throw new Error(sentence(answer.error || `The server answered ${response.status}`));
  }
}

function sentence(line) {
  const text = line.charAt(0).toUpperCase() + line.slice(1);
  return /[.?!]$/.test(text) ? text : `${text}.`;
}

export const get = (path, signal) => ask(path, { signal });
export const post = (path, body, signal) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });

export const opening = () => get("/api/opening");
export const cancelOpening = () => post("/api/opening/cancel", {});
export const resumeOpening = () => post("/api/opening/resume", {});
export const showOpened = () => post("/api/opening/show", {});
export const store = () => ask("/api/store");
export const image = (id) => ask(`/api/image?id=${encodeURIComponent(id)}`);
export const search = (asked, signal) => post("/api/search", asked, signal);
export const scatter = (asked, signal) => post("/api/scatter", asked, signal);
export const predict = (example, signal) => post("/api/predict", example, signal);
export const network = async () => (await ask("/api/uploads")).network;
export const labels = () => get("/api/labels");
export const labelCounts = (filter, signal) => get(`/api/labels?${filterQuery(filter)}`, signal);
export const labelsOf = (id) => get(`/api/labels/of?id=${encodeURIComponent(id)}`);
export const changeLabels = (change) => post("/api/labels", change);
export const setLabels = (ids, names) => changeLabels({ ids, labels: names });
export const undoLabels = (act) => post("/api/labels/undo", { act });
export const nextToLabel = (filter, skip) => post("/api/labels/next", { ...filter, skip });
export const changeClass = (change) => post("/api/labels/classes", change);
export const learned = () => get("/api/labels/learned");
export const forgetFolders = () => post("/api/labels/forget-folders", {});
export const importLabels = (file) => ask("/api/labels/labels.csv", { method: "POST", headers: { "Content-Type": "text/csv" }, body: file });
export const upload = (file) =>
  ask("/api/uploads", { method: "POST", headers: { "Content-Type": file.type || "application/octet-stream" }, body: file });

// The filter of all views as the query of a GET request.
export function filterQuery(filter, more = {}) {
  const query = new URLSearchParams(more);
  for (const name of ["text", "selection", "only"]) if (filter[name]) query.set(name, filter[name]);
  for (const label of filter.labels) query.append("label", label);
  return query;
}

export const images = (filter, offset, limit, order = "") =>
  get(`/api/images?${filterQuery(filter, { offset, limit, ...(order ? { order } : {}) })}`);

// Remember photos on the server as a selection, whose key filters all views.
export const select = (ids, name) => post("/api/selections", { ids, name });
export const selection = (key) => get(`/api/selections?${new URLSearchParams({ key })}`);
export const job = (name) => get(`/api/jobs?${new URLSearchParams({ name })}`);
export const cancelJob = (name) => post("/api/jobs/cancel", { name });

export const thumbnail = (id, size = "small") =>
  `/api/thumbnail?id=${encodeURIComponent(id)}${size === "small" ? "" : `&size=${size}`}`;
