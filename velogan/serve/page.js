let token = new URLSearchParams(location.hash.slice(1)).get("token") || sessionStorage.getItem("token") || "";
let about = null;
let chosen = null;     // the file
let request = null;    // the AbortController of the current request
let url = null;        // the result, for the download

if (token && location.hash) history.replaceState(null, "", location.pathname);  // remove the token from the address

function complain(text, again = false) {
  part("reason").textContent = text;
  show("error", Boolean(text));
  show("again", again);
}

async function ask(path, options = {}) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { ...options, headers });
  let body = null;
  try { body = await answer.json(); } catch { /* not JSON: reported below */ }
  if (answer.ok && body) return body;
  const error = new Error(body && typeof body.detail === "string" ? body.detail : `The server returned status ${answer.status}.`);
  error.status = answer.status;
  throw error;
}

function size(bytes) { return bytes < 1e6 ? `${Math.max(1, Math.round(bytes / 1e3))} kB` : `${(bytes / 1e6).toFixed(1)} MB`; }

async function start() {
  try {
    about = await ask("/api/about");
  } catch (error) {
    if (error.status === 401) {
      show("enter", true);
      if (token) complain("This token is wrong.");
      sessionStorage.removeItem("token");
      part("token").focus();
    } else {
      complain("The server cannot be reached: is it still running?", true);
      part("again").onclick = () => { complain(""); start(); };
    }
    return;
  }
  if (token) sessionStorage.setItem("token", token);
  complain("");
  show("enter", false);
  part("name").textContent = document.title = about.name;
  const takes = `or drop one here: up to ${Math.floor(about.max_upload_bytes / 2 ** 20) || "less than 1"} MB and ${+(about.max_pixels / 1e6).toFixed(1)} megapixels`;
  part("takes").textContent = takes;
  offer(about.directions, () => { show("uncertainty-toggle", uncertain()); if (chosen) translate(); });
  show("directions", true);
  show("uncertainty-toggle", uncertain());
  show("drop", true);
}

function uncertain() { return about.uncertainty.includes(direction()); }

function plain(error) {
  if (error.status === 503) return "The queue is full. Try again in a moment.";
  if (error.status) return error.message.charAt(0).toUpperCase() + error.message.slice(1) + (/[.!?]$/.test(error.message) ? "" : ".");
  return "The server cannot be reached: is it still running?";
}

async function translate() {
  if (request) request.abort();
  const current = request = new AbortController();
  complain("");
  show("result", false);
  if (chosen.size > about.max_upload_bytes) {
    say("");
    return complain(`This file has ${size(chosen.size)}; the server takes up to ${size(about.max_upload_bytes)}.`);
  }
  say(`Translating ${chosen.name} …`, true);
  const form = new FormData();
  form.set("picture", chosen, chosen.name.replace(/[\/\\\p{C}]/gu, "_").slice(-200));
  form.set("direction", direction());
  if (uncertain() && part("show-uncertainty").checked) form.set("uncertainty", "true");
  form.set("preview", "true");
  try {
    const result = await ask("/api/translate", { method: "POST", body: form, signal: current.signal });
    await present(result);
    if (current === request) say("");
  } catch (error) {
    if (current !== request || error.name === "AbortError") return;
    say("");
    if (error.status === 401) { show("enter", true); show("drop", false); show("directions", false); }
    complain(plain(error), !error.status || error.status >= 500);
    part("again").onclick = translate;
  }
}

async function present(result) {
  const [before, after] = [part("before"), part("after")];
  before.src = result.preview.before;
  after.src = result.preview.after;
  await Promise.all([before.decode(), after.decode()]);
  show("uncertainty-map", Boolean(result.preview.uncertainty));
  if (result.preview.uncertainty) part("uncertainty-map").src = result.preview.uncertainty;
  for (const image of [before, after]) image.classList.toggle("crisp", image.naturalWidth < 128);
  part("compare").style.setProperty("--ratio", result.width / result.height);
  if (url) URL.revokeObjectURL(url);
  const bytes = Uint8Array.from(atob(result.picture), (letter) => letter.charCodeAt(0));
  url = URL.createObjectURL(new Blob([bytes], { type: result.media_type }));
  Object.assign(part("download"), { href: url, download: result.name });
  const format = result.same_format ? result.format.toUpperCase() : `${result.format.toUpperCase()}, since the file's own format cannot hold it`;
  const uncertainty = result.uncertainty ? `; uncertainty ${Math.round(100 * result.uncertainty.mean)} % on average, ${Math.round(100 * result.uncertainty.highest.mean)} % at its highest` : "";
  part("facts").textContent = `${result.width} × ${result.height} pixels, ${size(bytes.length)}, ${format}${uncertainty}`;
  if (result.uncertainty_error) complain(`No uncertainty map: ${result.uncertainty_error}.`);
  show("result", true);
  part("drop").classList.add("small");
  slide(50);
}

function take(files) {
  if (!files || !files.length || !about) return;
  chosen = files[0];
  translate();
}

part("show-uncertainty").addEventListener("change", () => { if (chosen) translate(); });
part("enter").addEventListener("submit", (event) => { event.preventDefault(); token = part("token").value.trim(); complain(""); start(); });
document.addEventListener("paste", (event) => take(event.clipboardData.files));
listen(take);
start();
