"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);
const hue = (number) => `var(--c${number % 8})`;

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function choice(names, chosen, onchange) {
  const buttons = names.map((name, index) => {
    const button = make("button", { textContent: name });
    button.onclick = () => {
      buttons.forEach((other) => other.setAttribute("aria-pressed", other === button));
      onchange(index);
    };
    button.setAttribute("aria-pressed", index === chosen);
    return button;
  });
  return buttons;
}

function key(colour) {
  const dot = make("i", { className: "key" });
  dot.style.setProperty("--hue", colour);
  return dot;
}

for (const button of document.querySelectorAll(".copy")) {
  button.onclick = async () => {
    const command = button.previousElementSibling;
    getSelection().selectAllChildren(command);
    try { await navigator.clipboard.writeText(command.textContent); button.textContent = "Copied"; } catch { document.execCommand("copy"); }
  };
}
