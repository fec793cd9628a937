// Three ways to bring a photo: drop it anywhere, pick a file, paste it.

const MOST = 20 * 2 ** 20; // bytes; the server refuses more, this only says so sooner

export function listenForPhotos(take, complain) {
  const file = document.querySelector("#file");
  const drop = document.querySelector("#drop");
  let inside = 0;

  function offer(files) {
    if (!files.length) return;
    if (files.length > 1) complain("One photo at a time: the first one is taken.");
    if (files[0].size > MOST) complain(`A photo must have at most 20 MB, ${files[0].name} has ${Math.round(files[0].size / 2 ** 20)} MB.`);
    else take(files[0]);
  }

  document.querySelector("#pick").addEventListener("click", () => file.click());
  file.addEventListener("change", () => {
    offer([...file.files]);
    file.value = ""; // so that the same file can be picked again
  });
  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    inside += 1;
    drop.hidden = false;
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
    offer([...event.dataTransfer.files]);
  });
  addEventListener("paste", (event) => offer([...(event.clipboardData?.files ?? [])]));
}
