"use strict";
// Draws the figures in the colours of the theme, and makes tables sortable and filterable.

const root = document.documentElement;
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const drawn = new Set();

function colours(plot) {
  const ink = getComputedStyle(root).getPropertyValue("--ink").trim();
  const patch = { "font.color": ink };
  for (const axis of Object.keys(plot.layout || {}).filter((name) => /^[xy]axis/.test(name))) {
    patch[`${axis}.color`] = ink;
  }
  return patch;
}

function draw(plot) {
  if (drawn.has(plot)) return;
  drawn.add(plot);
  const figure = JSON.parse(document.querySelector(`script[data-for="${plot.id}"]`).textContent);
  Plotly.newPlot(plot, figure.data, figure.layout, { responsive: true, displaylogo: false });
  Plotly.relayout(plot, colours(plot));
}

function recolour() {
  for (const plot of drawn) Plotly.relayout(plot, colours(plot));
}

function setTheme(theme) {
  root.dataset.theme = theme;
  recolour();
}

setTheme(dark.matches ? "dark" : "light");
dark.addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
document.getElementById("theme").addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));

const plots = document.querySelectorAll(".plot");
const near = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
  { rootMargin: "600px" },
);
plots.forEach((plot) => near.observe(plot));
let before;
window.addEventListener("beforeprint", () => {
  before = root.dataset.theme;
  root.dataset.theme = "light";
  plots.forEach(draw);
  recolour();
});
window.addEventListener("afterprint", () => setTheme(before));

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => {
      const cell = row.cells[column];
      return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
    };
    const rows = [...table.tBodies[0].rows].sort((one, other) => {
      const [a, b] = [key(one), key(other)];
      if (a === "" || b === "") return (a === "") - (b === "");  // unknown values come last in either order
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return down ? -order : order;
    });
    table.tBodies[0].append(...rows);
  }));
}

function makeFilterable(filters, table) {
  const input = filters.querySelector("input");
  const selects = [...filters.querySelectorAll("select")];
  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word)) ||
        selects.some((select) => select.value && row.cells[select.dataset.column].textContent !== select.value);
      count += !row.hidden;
    }
    filters.querySelector("output").textContent = `${count} of ${table.tBodies[0].rows.length} rows`;
  };
  filters.addEventListener("input", show);
  show();
}

document.querySelectorAll("table.trials").forEach((table) => {
  makeSortable(table);
  makeFilterable(table.closest("section").querySelector(".filters"), table);
});
