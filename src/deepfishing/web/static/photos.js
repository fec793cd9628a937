// Ways to upload a photo: drop it anywhere, pick a file, paste it. The network that looks at photos is
// loaded when the server starts; until it is ready the page does not offer them.

import * as api from "./api.js";

const MOST = 20 * 2 ** 20; // bytes; the server refuses more, this only says so sooner
const AGAIN = 700; // milliseconds until the server is asked again whether it is ready

const pick = document.querySelector("#pick");
const words = pick.firstElementChild;
const previews = new Map(); // of uploaded photos, by key: the browser's own copy

export const preview = (key) => previews.get(key);

// Say how far the network is, until it is ready or known not to come.
async function watch() {
  const state = await api.network().catch(() => "failed");
  pick.disabled = state === "loading";
  pick.hidden = state === "none"; // imported vectors: the network is unknown
  document.body.classList.toggle("no-photos", pick.hidden);
  words.textContent = state === "loading" ? "Photos: in a moment …" : "Search by photo";
  if (state === "loading") setTimeout(watch, AGAIN);
}

// `taken` asks the view on the screen first: true if it takes the photos itself.
export function listenForPhotos(search, complain, taken = () => false) {
  const file = document.querySelector("#file");
  const drop = document.querySelector("#drop");
  let inside = 0;

  async function take(photo) {
    complain("");
    document.body.classList.add("busy");
    words.textContent = "Reading the photo …";
    try {
      const { upload } = await api.upload(photo);
      previews.set(upload, URL.createObjectURL(photo));
      search([{ upload }]);
    } catch (error) {
      complain(error.message);
    }
    document.body.classList.remove("busy");
    watch();
  }

  function offer(files) {
    if (!files.length || pick.hidden) return;
    if (files[0].size > MOST) complain(`A photo must have at most 20 MB, ${files[0].name} has ${Math.round(files[0].size / 2 ** 20)} MB.`);
    else take(files[0]).then(() => files.length > 1 && complain("One photo at a time: the first one is taken."));
  }

  watch();
  pick.addEventListener("click", () => file.click());
  file.addEventListener("change", () => {
    offer([...file.files]);
    file.value = ""; // so that the same file can be picked again
  });
  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    inside += 1;
    drop.hidden = pick.hidden;
  });
  addEventListener("dragover", (event) => carriesFiles(event) && event.preventDefault());
  addEventListener("dragleave", (event) => {
    if (!carriesFiles(event)) return;
    inside -= 1;
    drop.hidden = inside > 0 ? drop.hidden : true;
  });
  addEventListener("drop", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    inside = 0;
    drop.hidden = true;
    const files = [...event.dataTransfer.files];
    if (!taken(files)) offer(files);
  });
  addEventListener("paste", (event) => offer([...(event.clipboardData?.files ?? [])]));
}
