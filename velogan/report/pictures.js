/* Pictures over training time. */

function pictures() {
  const galleries = data.galleries;
  if (!galleries.length) return;
  $("pictures").hidden = false;
  const many = data.runs.length > 1;
  const times = [...new Set(galleries.flatMap((g) => g.frames.map((f) => f.images)))].sort((a, b) => a - b);
  const sliders = [$("time"), $("again")];
  let position = times.length - 1;
  let timer = 0;
  let large = null; // {gallery, row, canvases} while a row is enlarged

  const frameOf = (gallery) => gallery.frames.findLast((f) => f.images <= times[position]) || gallery.frames[0];

  function paint(gallery, row, canvases) {
    const { picture } = frameOf(gallery);
    if (!picture.complete || !picture.naturalWidth) return;
    const scale = picture.naturalWidth / gallery.size[0];
    const [width, height] = gallery.tile;
    canvases.forEach((canvas, column) => {
      const left = column * (width + gallery.gap) * scale;
      const top = row * (height + gallery.gap) * scale;
      const context = canvas.getContext("2d");
      context.drawImage(picture, left, top, width * scale, height * scale, 0, 0, canvas.width, canvas.height);
    });
  }

  function draw() {
    for (const gallery of galleries) {
      if (!gallery.card.hidden) gallery.canvases.forEach((canvases, row) => paint(gallery, row, canvases));
    }
    if (large) paint(large.gallery, large.row, large.canvases);
    sliders.forEach((slider) => (slider.value = position));
    const text = `${times[position].toLocaleString("en")} images`;
    $("when").textContent = $("then").textContent = text;
    sliders.forEach((slider) => slider.setAttribute("aria-valuetext", text));
  }

  function go(to) {
    position = Math.max(0, Math.min(times.length - 1, to));
    draw();
  }

  function play(on) {
    clearInterval(timer);
    timer = 0;
    $("play").textContent = on ? "❚❚" : "▶";
    $("play").setAttribute("aria-label", on ? "Pause" : "Play");
    if (!on) return;
    if (position === times.length - 1) go(0);
    timer = setInterval(() => (position < times.length - 1 ? go(position + 1) : play(false)), 180);
  }

  function blanks(gallery) {
    const [width, height] = gallery.tile.map(Math.round);
    return gallery.columns.map(() => make("canvas", { width, height }));
  }

  function enlarge(gallery, row) {
    large = { gallery, row, canvases: blanks(gallery) };
    const figures = large.canvases.map((canvas, column) =>
      make("figure", {}, canvas, make("figcaption", { textContent: capital(gallery.columns[column]) })));
    $("tiles").replaceChildren(...figures);
    if (!$("large").open) $("large").showModal();
    draw();
  }

  for (const gallery of galleries) {
    const [columns, rows] = [gallery.columns.length, gallery.rows.length];
    gallery.tile = [
      (gallery.size[0] - (columns - 1) * gallery.gap) / columns,
      (gallery.size[1] - (rows - 1) * gallery.gap) / rows,
    ];
    for (const frame of gallery.frames) {
      frame.picture = make("img", { src: frame.uri });
      frame.picture.onload = () => frameOf(gallery) === frame && draw();
    }
    const direction = gallery.domains.map((name, end) => (end ? name : capital(name))).join(" → ");
    const heading = make("h3", {}, many ? data.runs[gallery.run].name : direction);
    if (many) heading.prepend(key(hue(gallery.run)));
    const titles = make("div", { className: "titles" }, ...gallery.columns.map((name) => make("span", {}, capital(name))));
    gallery.canvases = gallery.rows.map(() => blanks(gallery));
    const lines = gallery.canvases.map((canvases, row) => {
      const line = make("button", { className: "row", title: `${gallery.rows[row]}: enlarge` }, ...canvases);
      line.onclick = () => enlarge(gallery, row);
      return line;
    });
    gallery.card = make("div", { className: "card" }, heading, titles, ...lines);
    gallery.card.style.setProperty("--columns", columns);
    $("cards").append(gallery.card);
  }

  if (many) {
    $("cards").classList.add("narrow");
    const directions = [...new Set(galleries.map((g) => g.direction))];
    const show = (index) => {
      galleries.forEach((g) => (g.card.hidden = g.direction !== directions[index]));
      draw();
    };
    const names = directions.map((direction) => capital(galleries.find((g) => g.direction === direction).domains.join(" → ")));
    if (directions.length > 1) $("directions").append(...choice(names, 0, show));
    show(0);
  }
  for (const slider of sliders) {
    slider.max = times.length - 1;
    slider.oninput = () => { play(false); go(Number(slider.value)); };
  }
  $("play").onclick = () => play(!timer);
  $("close").onclick = () => $("large").close();
  $("large").onclose = () => (large = null);
  $("large").onclick = (event) => event.target === $("large") && $("large").close();
  $("large").onkeydown = (event) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    enlarge(large.gallery, (large.row + step + large.gallery.rows.length) % large.gallery.rows.length);
  };
  draw();
}

pictures();
