// What is on the screen, kept in the address after #, so that reload, back and a copied link work.
// An example is {id} of the store or {upload}, the key of a photo that the server remembers. Labels,
// text, selection (a key that the server gave) and only ("labelled", "unlabelled" or "none") are the
// filter, which all views share.

const LISTS = { id: "like", upload: "like", not: "unlike" };
const TEXTS = ["view", "words", "text", "selection", "only", "forward", "gradient", "order", "show"];

export const FIRST_VIEW = "photos";

export function read() {
  const found = { like: [], unlike: [], labels: [] };
  for (const name of TEXTS) found[name] = "";
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (name in LISTS) found[LISTS[name]].push(name === "upload" ? { upload: value } : { id: value });
    else if (name === "label") found.labels.push(value);
    else if (TEXTS.includes(name)) found[name] = value;
  }
  if (!found.view) found.view = FIRST_VIEW;
  return found;
}

// The address of a state; of a link, too.
export function address(state) {
  const query = new URLSearchParams();
  for (const one of state.like) query.append(one.upload ? "upload" : "id", one.upload || one.id);
  for (const one of state.unlike) query.append("not", one.id);
  for (const label of state.labels) query.append("label", label);
  for (const name of TEXTS) {
    const isUsual = name === "view" && state.view === FIRST_VIEW;
    if (state[name] && !isUsual) query.set(name, state[name]);
  }
  return `#${query}`;
}

// Go to a changed state; with `replace` the step back skips it, as for every letter of a text.
export function go(change, replace = false) {
  const to = address({ ...read(), ...change });
  if (to === (location.hash || "#")) return;
  if (replace) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  dispatchEvent(new Event("hashchange"));
}

// The part of a state that filters photos, as the server takes it.
export const filterOf = ({ labels, text, selection, only }) => ({ labels, text, selection, only });
export const isFiltered = ({ labels, text, selection, only }) => Boolean(labels.length || text || selection || only);
export const NO_FILTER = { labels: [], text: "", selection: "", only: "" };

export const same = (a, b) => a.id === b.id && a.upload === b.upload;
export const without = (list, one) => list.filter((other) => !same(one, other));
