"use strict";  // functions that the pages of the server and of exported sites share
const part = (id) => document.getElementById(id);

function show(id, yes) { part(id).hidden = !yes; }

function say(text, busy = false) {
  part("status").textContent = text;
  part("status").classList.toggle("busy", busy);
}

function offer(titles, changed) {  // titles by direction
  part("directions").querySelectorAll(".way").forEach((old) => old.remove());
  Object.entries(titles).forEach(([way, title], index) => {
    const label = document.createElement("label"), input = document.createElement("input"), text = document.createElement("span");
    label.className = "way";
    Object.assign(input, { type: "radio", name: "direction", value: way, checked: index === 0 });
    input.addEventListener("change", changed);
    text.textContent = title;
    label.append(input, text);
    part("directions").append(label);
  });
}

function direction() { return document.querySelector("input[name=direction]:checked").value; }

function slide(to) {
  part("slider").value = to;
  part("slider").setAttribute("aria-valuetext", `${to} % before, ${100 - to} % after`);
  part("compare").style.setProperty("--at", `${to}%`);
  part("left").classList.toggle("away", to < 15);
  part("right").classList.toggle("away", to > 85);
}

function listen(take) {  // for files that are chosen or dropped, and for the slider
  part("slider").addEventListener("input", (event) => slide(Number(event.target.value)));
  part("file").addEventListener("change", (event) => { take([...event.target.files]); event.target.value = ""; });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      part("drop").classList.toggle("over", kind === "dragover");
      if (kind === "drop") take(event.dataTransfer.files);
    });
  }
}
