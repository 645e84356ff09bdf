"use strict";
// What the pages' scripts share. `D` is the page's data; nothing is fetched.
const D = JSON.parse(document.getElementById("data").textContent);
function el(tag, attrs, ...children) {
  const made = document.createElement(tag);
  fill(made, attrs, children);
  return made;
}
function svg(tag, attrs, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(made, attrs, children);
  return made;
}
function fill(made, attrs, children) {
  for (const [name, value] of Object.entries(attrs || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((c) => c !== null && c !== undefined));
}
const $ = (id) => document.getElementById(id);
