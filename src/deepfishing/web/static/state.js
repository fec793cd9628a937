// What is asked for, kept in the address after #, so that reload, back and a copied link work.
// An example is {id} of the store or {upload}, the key of a photo that the server remembers.

const lists = { id: "like", upload: "like", not: "unlike" };

export function read() {
  const found = { like: [], unlike: [], labels: [], text: "", forward: "", gradient: "" };
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (name in lists) found[lists[name]].push(name === "upload" ? { upload: value } : { id: value });
    else if (name === "label") found.labels.push(value);
    else if (name === "text" || name === "forward" || name === "gradient") found[name] = value;
  }
  return found;
}

function address(state) {
  const query = new URLSearchParams();
  for (const one of state.like) query.append(one.upload ? "upload" : "id", one.upload || one.id);
  for (const one of state.unlike) query.append("not", one.id);
  for (const label of state.labels) query.append("label", label);
  for (const name of ["text", "forward", "gradient"]) if (state[name]) query.set(name, state[name]);
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

export const same = (a, b) => a.id === b.id && a.upload === b.upload;
export const without = (list, one) => list.filter((other) => !same(one, other));
