// Labels by keys: one picture at a time, beginning with those that teach most, or a group at once. A
// label counts when the server has confirmed it. The classifier learns meanwhile.

import * as api from "./api.js";
import { element, picture, shortName } from "./card.js";
import { drawCurve } from "./curve.js";
import { meantClass } from "./labels.js";
import { notice, toast } from "./messages.js";
import { filterOf, go, isFiltered, read } from "./state.js";

export const style = "view_label.css";
export const chips = "filter"; // the others would look like classes to choose from
export const takesSlash = true; // for the name of a class
export const keys = [
  ["1 … 9", "class"],
  ["/", "class by name"],
  ["Enter", "take the suggestion"],
  ["0", "none of these"],
  ["S", "skip"],
  ["U", "undo"],
];

const $ = (selector) => document.querySelector(selector);
const KEYS = 9; // classes with a number key
const MAX_SKIPPED = 1000; // that the server takes
const MAX_GROUP = 200; // pictures of a group on the screen
const LIKE_THIS = 40; // pictures that are looked for to be labelled together
const AGAIN = 250; // milliseconds until it is asked again whether the classifier has learned
const EVEN = 0.6; // below this probability a suggestion is called a guess
const ENOUGH = 20; // labels after which a review or a model makes sense
const SURE = 0.9; // from this probability a suggestion is called sure

let context = null;
let shown = null; // what is on the screen: {id, labels, suggestions, left}
let classes = [];
let chosen = []; // labels of this picture, where it may have several
let skipped = [];
const acts = []; // of this tab, the last one is undone first
let busy = false;
let waiting = null; // what was pressed while another thing was done: {work, id}
let filter = "";
let group = null; // {ids, apart}: pictures that are labelled together, and those that are not
let watching = 0;
let pick = 0; // which of the classes that are found Enter takes
let likeness = []; // ids of the group that was looked for last, the most similar first

// ---- one picture ----

async function refresh() {
  const summary = await api.labels();
  classes = summary.classes;
  renderFirstStep(summary);
  const left = isFiltered(read()) && shown?.left !== undefined ? `, ${shown.left.toLocaleString()} left in the filter` : "";
  $("#state").textContent = `${summary.labelled.toLocaleString()} of ${summary.images.toLocaleString()} pictures are labelled${left}`;
  $("#undo").disabled = !acts.length;
  $("#forget").hidden = !summary.from_folders;
  $("#forget").textContent = `Ignore the names of folders as labels (${summary.from_folders.toLocaleString()} pictures)`;
  renderClasses();
  renderClassList();
}

// Without any class there is one thing to do. Without two classes there is nothing to review or train.
function renderFirstStep({ labelled }) {
  const isFirst = !classes.length && Boolean(shown);
  $("#first-step").hidden = !isFirst;
  $("#none").hidden = !classes.length;
  const used = classes.filter((one) => one.images);
  $("#next-steps").hidden = used.length < 2 || labelled < ENOUGH;
  if (isFirst && document.activeElement === document.body && !matchMedia("(pointer: coarse)").matches) $("#class-name").focus();
}

function renderClasses() {
  const found = matching($("#class-name").value.trim());
  const picked = found[pick];
  $("#classes").replaceChildren(...found.map((one, rank) => classButton(one, one.isFound && rank === pick)));
  $("#classes .first")?.scrollIntoView({ block: "nearest" });
  const words = picked?.isNew ? "makes the new class" : "takes";
  $("#enter-takes").textContent = picked?.isFound ? `Enter ${words} ${picked.name}.` : "";
  $("#class-names").replaceChildren(...classes.map(({ name }) => element("option", { value: name })));
}

// The classes that what was typed may mean, the likeliest first. Unless one has just this name, what
// was typed may also be a new class: the likeliest if no class begins with it.
function matching(typed) {
  const wanted = typed.toLowerCase();
  const all = classes.map((one, at) => ({ ...one, at, isFound: Boolean(typed) }));
  if (!typed) return all;
  const isExact = (one) => one.name.toLowerCase() === wanted;
  const begins = (one) => !isExact(one) && one.name.toLowerCase().startsWith(wanted);
  const contains = (one) => one.name.toLowerCase().includes(wanted) && !one.name.toLowerCase().startsWith(wanted);
  const fresh = { name: typed, images: "new", at: KEYS, isFound: true, isNew: true };
  const exact = all.filter(isExact);
  const begun = all.filter(begins);
  return [...exact, ...begun, ...(exact.length ? [] : [fresh]), ...all.filter(contains)];
}

// Arrows go through the classes that are found, and Enter takes the one that is marked.
function typing(event) {
  if (event.key === "/" && !$("#class-name").value) event.preventDefault(); // it was the key to come here
  if (event.key === "Escape") {
    $("#class-name").value = "";
    pick = 0;
    renderClasses();
  }
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const typed = $("#class-name").value.trim();
  if (!by || !typed) return;
  event.preventDefault();
  pick = Math.min(Math.max(pick + by, 0), matching(typed).length - 1);
  renderClasses();
}

function takePicked() {
  const typed = $("#class-name").value.trim();
  const picked = typed ? matching(typed)[pick] : null;
  if (!picked) return;
  $("#class-name").value = "";
  $("#class-name").blur();
  pick = 0;
  choose(picked.name);
}

function classButton({ name, images, at }, isFirst) {
  const button = element("button", { type: "button", value: name, onclick: () => choose(name) });
  button.classList.toggle("first", Boolean(isFirst));
  if ($("#several").checked) button.setAttribute("aria-pressed", String(chosen.includes(name)));
  if (at < KEYS) button.append(element("kbd", { textContent: at + 1 }));
  button.append(element("span", { textContent: name }), element("small", { className: "soft", textContent: images }));
  return element("li", {}, button);
}

function show(found) {
  shown = found.id === null ? null : found;
  chosen = [...(shown?.labels ?? [])];
  const filtered = isFiltered(read()) ? " in this filter" : "";
  $("#photo").className = "shot";
  $("#photo").replaceChildren(...(shown ? [picture(api.thumbnail(shown.id, "large"), shown.id)] : []));
  $("#name").textContent = shown?.id ?? `No picture is left to label${filtered}.`;
  $("#upcoming").replaceChildren(...(found.then ?? []).map((id) => element("li", { className: "shot", title: id }, picture(api.thumbnail(id)))));
  $("#similar").disabled = !shown;
  renderSuggestion();
}

function renderSuggestion() {
  const first = shown?.suggestions?.[0];
  $("#suggestion").hidden = !first;
  if (!first) return;
  const name = first.none ? "none of these" : first.name;
  const words = [element("span", { textContent: first.probability >= EVEN ? "Probably " : "Perhaps " }), element("b", { textContent: name })];
  if (first.probability !== undefined) words.push(element("span", { className: "soft", textContent: ` ${Math.round(first.probability * 100)} %${first.probability >= SURE ? ", sure" : ""}` }));
  const others = shown.suggestions.slice(1, 3).map(otherSuggestion);
  const take = element("button", { type: "button", className: "primary", onclick: () => takeSuggestion() }, "Take it ", element("kbd", { textContent: "Enter" }));
  $("#suggestion").replaceChildren(element("p", {}, ...words), take, ...(others.length ? [element("p", { className: "others soft" }, "or ", ...others)] : []));
}

function otherSuggestion({ name, none }) {
  return element("button", { type: "button", textContent: none ? "none of these" : name, onclick: () => (none ? label([]) : choose(name)) });
}

// Do one thing at a time, so that a key pressed twice does not label two pictures. What is pressed
// meanwhile is done afterwards, if the picture that it was meant for is still on the screen.
async function run(work) {
  if (busy) {
    waiting = { work, id: shown?.id };
    return;
  }
  busy = true;
  try {
    await work();
    await refresh();
  } catch (error) {
    notice(error.message);
    if (shown) show({ ...shown, ...(await api.labelsOf(shown.id).catch(() => ({}))) });
  }
  busy = false;
  const { work: later, id } = waiting ?? {};
  waiting = null;
  if (later && id === shown?.id) await run(later);
}

const next = async () => show(await api.nextToLabel(filterOf(read()), skipped));

const label = (names) =>
  run(async () => {
    if (!shown) return;
    const { act } = await api.changeLabels({ ids: [shown.id], labels: names, seen: shown.labels });
    if (act) acts.push(act);
    watch();
    await next();
  });

// A class that was pressed: it is the label, or one of several.
function choose(name) {
  if (!$("#several").checked) {
    label([name]);
    return;
  }
  chosen = chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name];
  if (!classes.some((one) => one.name === name)) classes.push({ name, images: 0 });
  renderClasses();
}

function takeSuggestion() {
  if ($("#several").checked && chosen.length) label(chosen);
  else if (shown?.suggestions?.length) label(shown.suggestions[0].none ? [] : [shown.suggestions[0].name]);
}

const skip = () =>
  run(async () => {
    if (!shown) return;
    skipped = [...skipped, shown.id].slice(-MAX_SKIPPED);
    await next();
  });

const undo = () =>
  run(async () => {
    if (!acts.length) return;
    const { ids } = await api.undoLabels(acts.at(-1));
    acts.pop();
    watch();
    if (ids.length === 1) show({ ...(await api.labelsOf(ids[0])), then: [] });
    else await next();
  });

// ---- how well it works ----

// Ask until the classifier has learned from the last label.
async function watch() {
  watching += 1;
  const mine = watching;
  let wait = AGAIN;
  while (mine === watching && !context.signal.aborted) {
    const state = await api.learned().catch(() => null);
    if (mine !== watching || context.signal.aborted) return;
    if (state) renderLearned(state);
    if (!state || state.state === "failed") return;
    if (state.state === "ready" && state.learned === state.version && state.is_whole) {
      await suggestAgain(mine);
      return;
    }
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 1.3, 2000);
  }
}

// The picture on the screen gets the suggestion of what was learned since it came.
async function suggestAgain(mine) {
  if (!shown || busy) return;
  const { id } = shown;
  const found = await api.labelsOf(id).catch(() => null);
  if (!found || mine !== watching || shown?.id !== id) return;
  shown.suggestions = found.suggestions;
  renderSuggestion();
}

function renderLearned(state) {
  $("#curve").hidden = !state.curve?.length;
  if (state.curve?.length) {
    const { accuracy, interval } = state.estimate ?? state.curve.at(-1);
    drawCurve($("#curve svg"), state.curve);
    $("#accuracy").textContent = `suggestions right for about ${Math.round(accuracy)} %`;
    $("#curve-words").textContent = `Right for about ${Math.round(accuracy)} % of the pictures without a label (${Math.round(interval[0])} to ${Math.round(interval[1])} %), estimated from labelled ones that were left out.`;
  }
  let words = state.advice ?? "";
  if (state.state === "failed") words = state.error;
  else if (state.state === "preparing") words = `Getting ready to suggest labels${state.job?.total ? `: ${state.job.stage}, ${Math.round((100 * state.job.done) / state.job.total)} %` : ""} … You can label meanwhile.`;
  $("#advice").textContent = words;
  $("#advice").classList.toggle("enough", Boolean(state.enough));
}

// ---- classes ----

function renderClassList() {
  $("#class-list").replaceChildren(
    ...classes.map(({ name, images }) => {
      const field = element("input", { value: name, maxLength: 100, ariaLabel: `New name of ${name}` });
      const form = element("form", {}, field, element("small", { className: "soft", textContent: images }), element("button", { type: "submit", textContent: "Rename" }));
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        rename(name, field.value.trim());
      });
      return element("li", {}, form);
    }),
  );
}

const rename = (name, to) =>
  run(async () => {
    if (!to || to === name) return;
    const isMerge = classes.some((one) => one.name === to);
    const { act } = await api.changeClass({ rename: name, to });
    if (!act) return;
    acts.push(act);
    toast(isMerge ? `${name} and ${to} are one class now.` : `${name} is called ${to} now.`, ["Undo", undo]);
    watch();
  });

const forget = () =>
  run(async () => {
    const { act, changed } = await api.forgetFolders();
    if (act) acts.push(act);
    toast(`${changed.toLocaleString()} labels that came from folders are removed.`, ["Undo", undo]);
    watch();
    await next();
  });

const takeTable = (file) =>
  run(async () => {
    const done = await api.importLabels(file);
    if (done.act) acts.push(done.act);
    const unmatched = done.unmatched ? ` ${done.unmatched} rows match no picture, such as ${done.such_as[0]}.` : "";
    toast(`${done.changed} labels taken from ${file.name}, ${done.same} were the same.${unmatched}`, ["Undo", undo]);
    watch();
    await next();
  });

// ---- a group at once ----

async function renderGroup(state) {
  const isGroup = state.show === "group" && Boolean(state.selection || isFiltered(state));
  $("#one-by-one").hidden = isGroup;
  $("#together").hidden = !isGroup;
  if (!isGroup) {
    group = null;
    return;
  }
  const found = await api.images(filterOf(state), 0, MAX_GROUP);
  if (!$("#together")) return;
  const rank = new Map(likeness.map((id, at) => [id, at]));
  found.images.sort((a, b) => (rank.get(a.id) ?? 0) - (rank.get(b.id) ?? 0));
  group = { ids: found.images.map((one) => one.id), apart: new Set(), total: found.total };
  $("#together-title").textContent = `${found.total.toLocaleString()} pictures`;
  $("#together-grid").replaceChildren(...found.images.map(groupCell));
  renderGroupState();
  $("#together-name").focus();
}

function groupCell({ id, labels }) {
  const words = labels.length ? labels.join(", ") : "";
  const button = element("button", { type: "button", className: "shot", title: id }, picture(api.thumbnail(id)));
  button.setAttribute("aria-pressed", "false");
  button.setAttribute("aria-label", `${shortName(id)} ${words}: does not belong`);
  button.addEventListener("click", () => {
    const isApart = !group.apart.has(id);
    if (isApart) group.apart.add(id);
    else group.apart.delete(id);
    button.setAttribute("aria-pressed", String(isApart));
    renderGroupState();
  });
  return element("li", {}, button, element("span", { className: "tags", textContent: words }));
}

function renderGroupState() {
  const beyond = group.total > group.ids.length ? ` The first ${group.ids.length} of ${group.total.toLocaleString()} are shown; the others are left for the next round.` : "";
  $("#together-state").textContent = `${group.ids.length - group.apart.size} get the label, ${group.apart.size} do not.${beyond}`;
}

// In a mixed group it is less work to press those that belong.
function swap() {
  group.apart = new Set(group.ids.filter((id) => !group.apart.has(id)));
  for (const button of document.querySelectorAll("#together-grid button")) button.setAttribute("aria-pressed", String(group.apart.has(button.title)));
  renderGroupState();
}

async function labelGroup(name) {
  const ids = group.ids.filter((id) => !group.apart.has(id));
  if (!name || !ids.length) return;
  const apart = [...group.apart];
  await run(async () => {
    const { act, changed } = await api.setLabels(ids, [name]);
    if (act) acts.push(act);
    toast(`${changed} pictures are ${name} now.`, ["Undo", undo]);
    watch();
    context.labelsChanged();
    if (!apart.length) {
      go({ show: "", selection: "" });
      return;
    }
    // the exceptions are next, one by one
    const rest = await api.select(apart, `not ${name}`);
    go({ show: "", selection: rest.selection });
  });
}

async function labelSimilar() {
  if (!shown) return;
  try {
    const by = context.store.gradient[0] || context.store.forward[0];
    const { hits } = await api.search({ by, like: [{ id: shown.id }], k: LIKE_THIS });
    const open = hits.filter((hit) => !hit.labels.length).map((hit) => hit.id);
    likeness = [shown.id, ...open];
    const made = await api.select(likeness, `like ${shortName(shown.id)}`);
    go({ show: "group", selection: made.selection });
  } catch (error) {
    notice(error.message);
  }
}

// ---- the view ----

// Whether a key was used.
export function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || group) return false;
  const named = classes[Number(event.key) - 1];
  const key = event.key.toLowerCase();
  if (event.key === "/") {
    event.preventDefault();
    $("#class-name").focus();
  } else if (event.key === "0") label([]);
  else if (named && Number(event.key) <= KEYS) choose(named.name);
  else if (key === "s") skip();
  else if (key === "u") undo();
  else if (event.key === "Enter" && !event.target.closest("button, a, summary")) takeSuggestion();
  else return false;
  return true;
}

export function update(state) {
  renderGroup(state).catch((error) => notice(error.message));
  $("#group").hidden = !isFiltered(state);
  const now = JSON.stringify(filterOf(state));
  if (now === filter) return;
  filter = now;
  run(next);
}

export function mount(place, given) {
  context = given;
  document.title = `Label – ${context.store.name}`;
  Object.assign($("#several"), { checked: localStorage.getItem("several") === "yes" });
  $("#done").hidden = !$("#several").checked;
  $("#several").addEventListener("change", () => {
    localStorage.setItem("several", $("#several").checked ? "yes" : "no");
    $("#done").hidden = !$("#several").checked;
    renderClasses();
  });
  $("#done").addEventListener("click", () => label(chosen));
  $("#none").addEventListener("click", () => label([]));
  $("#skip").addEventListener("click", skip);
  $("#undo").addEventListener("click", undo);
  $("#similar").addEventListener("click", labelSimilar);
  $("#group").addEventListener("click", () => go({ show: "group" }));
  $("#forget").addEventListener("click", forget);
  $("#import").addEventListener("click", () => $("#table").click());
  $("#table").addEventListener("change", () => {
    if ($("#table").files[0]) takeTable($("#table").files[0]);
    $("#table").value = "";
  });
  $("#class-name").addEventListener("input", () => {
    pick = 0;
    renderClasses();
  });
  $("#class-name").addEventListener("keydown", typing);
  $("#add").addEventListener("submit", (event) => {
    event.preventDefault();
    takePicked();
  });
  $("#together-swap").addEventListener("click", swap);
  $("#together-back").addEventListener("click", () => go({ show: "" }));
  $("#together-add").addEventListener("submit", (event) => {
    event.preventDefault();
    labelGroup(meantClass($("#together-name").value, classes.map(({ name }) => name)));
  });
  shown = null;
  busy = false;
  waiting = null;
  filter = "";
  pick = 0;
  watch();
}

export function unmount() {
  watching += 1;
  context.labelsChanged();
}
