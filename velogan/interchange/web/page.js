const base = new URL(".", location.href).href;
const only = new URLSearchParams(location.search).get("by");  // ?by=wasm leaves WebGPU alone
let site = null, source = null, worker = null, chosen = null, camera = null, turn = 0;
let queue = Promise.resolve();  // the worker translates one picture after another

function complain(text) {
  part("reason").textContent = text;
  show("error", Boolean(text));
}

async function start() {
  if (location.protocol === "file:") {
    return complain("Open this page through a web server. On this machine: python -m http.server, in the folder of this page.");
  }
  try {
    [site, source] = await Promise.all([
      fetch("site.json").then((answer) => answer.json()),
      fetch("worker.js").then((answer) => answer.text()),
    ]);
  } catch {
    return complain("This page is incomplete: site.json or worker.js is missing beside it.");
  }
  part("name").textContent = document.title = site.name;
  offer(Object.fromEntries(Object.entries(site.directions).map(([way, { title }]) => [way, title])), again);
  for (const id of ["directions", "drop", "tools"]) show(id, true);
}

function way() { return site.directions[direction()]; }

function compute(message) {
  const next = queue.then(() => new Promise((resolve, reject) => {
    if (!worker) {
      const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      worker = new Worker(address);
      URL.revokeObjectURL(address);
    }
    const fail = (text) => { worker.terminate(); worker = null; reject(new Error(text)); };  // its memory may be in disorder
    worker.onmessage = ({ data }) => data.error ? fail(data.error) : resolve(data);
    worker.onerror = (event) => fail(event.message || "the worker could not be started");
    worker.postMessage(message, [message.rgba.buffer]);
  }));
  queue = next.catch(() => {});
  return next;
}

function plain(error) {
  if (/memory|alloc|out of bounds|table index|\bOOM\b/i.test(error.message)) return "This device has too little memory for a picture of this size. Choose a smaller one.";
  return `It could not be translated: ${error.message.slice(0, 300)}`;
}

function drawn(image, width, height) {
  const share = Math.min(1, Number(part("side").value) / Math.max(width, height));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height].map((side) => Math.max(1, Math.round(side * share)));
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return context.getImageData(0, 0, canvas.width, canvas.height);
}

async function translated(image, width, height) {
  const before = drawn(image, width, height), began = performance.now();
  const { result, by } = await compute({ base, only, way: way(), rgba: before.data.slice(), width: before.width, height: before.height });
  return { before, after: new ImageData(result, before.width, before.height), by, seconds: (performance.now() - began) / 1000, width, height };
}

function present({ before, after, by, seconds, width, height }) {
  for (const [id, data] of [["before", before], ["after", after]]) {
    Object.assign(part(id), { width: data.width, height: data.height });
    part(id).getContext("2d").putImageData(data, 0, 0);
    part(id).classList.toggle("crisp", data.width < 128);
  }
  part("compare").style.setProperty("--ratio", before.width / before.height);
  const smaller = before.width < width ? `, made smaller from ${width} × ${height}` : "";
  part("facts").textContent = `${before.width} × ${before.height} pixels${smaller}; ${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s by ${by === "webgpu" ? "WebGPU" : "WebAssembly"}`;
  show("result", true);
  part("drop").classList.add("small");
}

async function translate() {
  const mine = ++turn;
  complain("");
  show("result", false);
  let image;
  try {
    image = await createImageBitmap(chosen);  // upright, and in sRGB
  } catch {
    say("");
    return complain("This browser cannot read that as a picture. JPEG, PNG and WebP always work.");
  }
  say(worker ? "Translating …" : `Loading the translator (${way().megabytes} MB, once), then translating …`, true);
  try {
    const done = await translated(image, image.width, image.height);
    if (mine !== turn) return;
    present(done);
    slide(50);
  } catch (error) {
    if (mine === turn) complain(plain(error));
  }
  if (mine === turn) say("");
}

function again() { if (chosen && !camera) translate(); }

function take(files) {
  if (!files || !files.length || !site) return;
  stop();
  chosen = files[0];
  translate();
}

async function film() {
  if (camera) return stop();
  complain("");
  if (!navigator.mediaDevices) return complain("The camera needs an address that begins with https, or localhost.");
  const video = document.createElement("video");
  try {
    camera = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    return complain(error.name === "NotAllowedError" ? "Access to the camera was denied." : "No camera was found.");
  }
  const [mine, stream] = [++turn, camera];
  chosen = null;
  part("side").value = "256";
  part("camera").textContent = "Stop the camera";
  Object.assign(video, { srcObject: stream, muted: true, playsInline: true });
  say(`Loading the translator (${way().megabytes} MB, once) …`, true);
  try {
    await video.play();
    while (camera === stream && mine === turn) {
      const done = await translated(video, video.videoWidth, video.videoHeight);
      if (camera !== stream) break;
      present(done);
      say("");
      await new Promise(requestAnimationFrame);
    }
  } catch (error) {
    if (camera === stream) complain(plain(error));
  }
  if (camera === stream) stop();
}

function stop() {
  if (!camera) return;
  camera.getTracks().forEach((track) => track.stop());
  camera = null;
  say("");
  part("camera").textContent = "Use the camera";
}

function download() {
  part("after").toBlob((blob) => {
    const link = document.createElement("a"), address = URL.createObjectURL(blob);
    const name = chosen ? chosen.name.replace(/\.[^.]*$/, "") : "camera";
    Object.assign(link, { href: address, download: `${name}-translated.png` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60000);
  }, "image/png");
}

part("side").addEventListener("change", again);
part("camera").addEventListener("click", film);
part("download").addEventListener("click", download);
listen(take);
start();
