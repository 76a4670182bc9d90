/* Curves of the log. */

const AXES = [
  ["images", "images seen", (x) => x],
  ["seconds", "minutes", (x) => x / 60],
  ["epoch", "epochs", (x) => x],
];
const TITLES = {
  "loss/generator": "Generator losses", "loss/discriminator": "Discriminator losses", lr: "Learning rate",
  validation: "On held-out images",
  images_per_s: "Images per second", step_ms: "Milliseconds per step",
};
const NOT_SMOOTHED = /^(lr|validation|failure)\//;
const view = { axis: AXES[0], smooth: 0.8 };
const charts = [];

function smoothed(values, weight) {
  let sum = 0, norm = 0; // exponential mean without the pull of its start
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

function ticks(low, high, count, log) {
  if (log) {
    const all = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
      for (const m of high / low < 100 ? [1, 2, 5] : [1]) all.push(m * 10 ** e);
    }
    const inside = all.filter((v) => v >= low * 0.999 && v <= high * 1.001);
    return inside.length > 1 ? inside : ticks(low, high, count, false);
  }
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
  const all = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-6; i++) all.push(i * step);
  return all;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return Number((value / 1e6).toPrecision(3)) + "M";
  if (size >= 1e4) return Number((value / 1e3).toPrecision(3)) + "k";
  if (size > 0 && size < 1e-3) return value.toExponential(1).replace(".0e", "e");
  return String(Number(value.toPrecision(3)));
}

function range(lists) {
  const values = lists.flat().filter((v) => v !== null).sort((a, b) => a - b);
  // a single spike must not flatten everything else
  return [values[Math.floor(values.length * 0.005)], values[Math.ceil(values.length * 0.995) - 1]];
}

function chart(title, series, { exact = false } = {}) {
  const plot = make("div", { className: "plot" });
  const legend = make("div", { className: "legend" });
  const logarithm = make("button", { textContent: "log" });
  const card = make("div", { className: "card" },
    make("div", { className: "top" }, make("h3", { textContent: title }), logarithm), plot, legend);
  const [low, high] = range(series.map((s) => s.values));
  let log = !exact && low > 0 && high / low > 30;
  logarithm.setAttribute("aria-pressed", log);
  logarithm.hidden = low <= 0;
  logarithm.onclick = () => { log = !log; logarithm.setAttribute("aria-pressed", log); draw(); };

  for (const line of series.length > 1 ? series : []) {
    const swatch = make("i", { className: line.dash ? "dash" : "" });
    swatch.style.setProperty("--hue", line.hue);
    const button = make("button", {}, swatch, line.name);
    button.setAttribute("aria-pressed", "true");
    button.onclick = () => { line.off = !line.off; button.setAttribute("aria-pressed", !line.off); draw(); };
    legend.append(button);
  }

  let scene = null;
  function draw() {
    const width = plot.clientWidth, height = 240, left = 46, right = 10, top = 8, bottom = 36;
    const [axis, unit, convert] = view.axis;
    const shown = series.filter((line) => !line.off).map((line) => ({
      ...line,
      xs: (data.runs[line.run].curves[axis] || []).map((x) => (x === null ? null : convert(x))),
      mean: exact ? line.values : smoothed(line.values, view.smooth),
    })).filter((line) => line.xs.length);
    if (!width || !shown.length) { plot.replaceChildren(); scene = null; return; }
    const xs = shown.flatMap((line) => line.xs).filter((x) => x !== null);
    const [x0, x1] = [Math.min(0, ...xs), Math.max(...xs) || 1];
    let [y0, y1] = range(shown.map((line) => line.values));
    if (log) { y0 /= 1.1; y1 *= 1.1; } else { const pad = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 1; y1 += pad; y0 = y0 >= 0 && y0 < y1 / 2 ? 0 : y0 - pad; }
    const scale = log ? (y) => Math.log(Math.max(y, 1e-12)) : (y) => y;
    const px = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
    const py = (y) => height - bottom - ((scale(y) - scale(y0)) / (scale(y1) - scale(y0))) * (height - top - bottom);
    const path = (line, values) => {
      let out = "", pen = "M";
      values.forEach((value, i) => {
        if (value === null || line.xs[i] === null) return; // some are logged less often than others
        out += `${pen}${px(line.xs[i]).toFixed(1)} ${py(value).toFixed(1)}`;
        pen = "L";
      });
      return out.includes("L") ? out : out && out + "h0"; // one point alone is a dot
    };
    const clip = `clip${charts.findIndex((other) => other.draw === draw)}`;
    const parts = [`<clipPath id="${clip}"><rect x="${left}" y="${top - 4}" width="${width - left - right + 4}" height="${height - top - bottom + 8}"/></clipPath>`];
    for (const y of ticks(y0, y1, 5, log)) {
      parts.push(`<line class="grid" x1="${left}" x2="${width - right}" y1="${py(y)}" y2="${py(y)}"/><text x="${left - 6}" y="${py(y) + 4}" text-anchor="end">${short(y)}</text>`);
    }
    for (const x of ticks(x0, x1, Math.max(2, Math.floor(width / 90)), false)) {
      parts.push(`<text x="${px(x)}" y="${height - bottom + 16}" text-anchor="middle">${short(x)}</text>`);
    }
    parts.push(`<text x="${width - right}" y="${height - 4}" text-anchor="end">${unit}</text><g clip-path="url(#${clip})" fill="none" stroke-linejoin="round" stroke-linecap="round">`);
    for (const line of shown) {
      const dash = line.dash ? ' stroke-dasharray="2 4" stroke-linecap="round"' : "";
      if (!exact && view.smooth) parts.push(`<path d="${path(line, line.values)}" style="stroke:${line.hue}" opacity="0.18"/>`);
      parts.push(`<path d="${path(line, line.mean)}" style="stroke:${line.hue}" stroke-width="2"${dash}/>`);
    }
    parts.push("</g>");
    plot.innerHTML = `<svg height="${height}" viewBox="0 0 ${width} ${height}" role="img">${parts.join("")}</svg>`;
    plot.firstChild.setAttribute("aria-label", `${title} over ${unit}`);
    scene = { shown, unit, width, invert: (at) => x0 + ((at - left) / (width - left - right)) * (x1 - x0), px, top, base: height - bottom };
  }

  function point(at) {
    if (!scene) return;
    plot.querySelectorAll(".tip, .cross").forEach((old) => old.remove());
    const wanted = scene.invert(at);
    const nearest = (line) => line.xs.reduce((best, x, i) => (x !== null && line.mean[i] !== null && (best < 0 || Math.abs(x - wanted) < Math.abs(line.xs[best] - wanted)) ? i : best), -1);
    const found = scene.shown.map((line) => [line, nearest(line)]).filter(([, i]) => i >= 0);
    if (!found.length) return;
    const x = found[0][0].xs[found[0][1]];
    const cross = plot.firstChild.lastChild.cloneNode(false); // a group of the same drawing
    cross.removeAttribute("clip-path");
    cross.setAttribute("class", "cross");
    cross.innerHTML = `<line x1="${scene.px(x)}" x2="${scene.px(x)}" y1="${scene.top}" y2="${scene.base}"/>`;
    plot.firstChild.append(cross);
    const rows = found.map(([line, i]) => make("div", {}, key(line.hue), line.name, make("b", {}, line.mean[i] === null ? "none" : short(line.mean[i]))));
    const tip = make("div", { className: "tip" }, make("div", {}, `${Number(x.toPrecision(4)).toLocaleString("en")} ${scene.unit}`), ...rows);
    plot.append(tip);
    const beside = scene.px(x) + 12;
    tip.style.left = `${Math.max(0, beside + tip.offsetWidth > scene.width ? scene.px(x) - tip.offsetWidth - 12 : beside)}px`;
  }

  plot.onpointermove = plot.onpointerdown = (event) => point(event.clientX - plot.getBoundingClientRect().left);
  plot.onpointerleave = () => plot.querySelectorAll(".tip, .cross").forEach((old) => old.remove());
  charts.push({ draw });
  // not within the observer's own turn: a drawing may change the sizes it watches
  new ResizeObserver(() => requestAnimationFrame(() => scene?.width !== plot.clientWidth && draw())).observe(plot);
  return card;
}

function oneRun(curves) {
  const groups = new Map([["loss/generator", []], ["loss/discriminator", []]]); // these first
  for (const name of Object.keys(curves)) {
    if (AXES.some(([axis]) => axis === name) || name.startsWith("validation/unchanged_input_")) continue; // level lines of single directions
    const group = name.includes("/") ? name.slice(0, name.lastIndexOf("/")) : name;
    groups.set(group, [...(groups.get(group) || []), name]);
  }
  return [...groups].filter(([, names]) => names.length).map(([group, names]) => {
    const bases = [];
    const series = names.map((name) => {
      const last = name.slice(name.lastIndexOf("/") + 1);
      const base = last.replace(/(^|_)[abAB]$/, "");
      if (last !== "total" && !bases.includes(base)) bases.push(base);
      const colour = last === "total" ? "var(--ink)" : hue(bases.indexOf(base));
      return { name: last.replaceAll("_", " "), hue: colour, dash: /(^|_)[bB]$/.test(last), run: 0, values: curves[name] };
    });
    const exact = NOT_SMOOTHED.test(names[0]);
    if (group === "lr") series.forEach((line, number) => Object.assign(line, { hue: hue(number), dash: number > 0 }));
    return chart(TITLES[group] || capital(group.replaceAll("_", " ")), series, { exact });
  });
}

function manyRuns() {
  const main = ["loss/generator/total", "loss/discriminator/total", "images_per_s", "lr/G"];
  const all = new Set(data.runs.flatMap((run) => Object.keys(run.curves)));
  AXES.forEach(([axis]) => all.delete(axis));
  const order = [...main.filter((name) => all.delete(name)), ...all];
  return order.map((name) => {
    const series = data.runs.map((run, number) => ({ name: run.name, hue: hue(number), run: number, values: run.curves[name] }));
    const title = capital(TITLES[name] || name.replace(/^loss\//, "").replace(/^lr\//, "learning rate ").replace(/[/_]/g, " "));
    return chart(title, series.filter((line) => line.values), { exact: NOT_SMOOTHED.test(name) });
  });
}

function curves() {
  const cards = data.runs.length > 1 ? manyRuns() : oneRun(data.runs[0].curves);
  $("more").hidden = cards.length <= 6;
  if (!cards.length) return;
  $("charts").hidden = false;
  $("plots").append(...cards.slice(0, 6));
  $("more").lastElementChild.append(...cards.slice(6));
  const axes = AXES.filter(([axis]) => data.runs.some((run) => run.curves[axis]));
  view.axis = axes[0] || AXES[0];
  const redraw = () => charts.forEach((each) => each.draw());
  $("axis").append(...choice(axes.map(([, unit]) => unit), 0, (index) => { view.axis = axes[index]; redraw(); }));
  $("smooth").oninput = () => { view.smooth = Number($("smooth").value); redraw(); };
}

curves();
