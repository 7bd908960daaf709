"use strict";
// What htmx does not do: the theme, a service that went away, charts, and a grid of many shards.

const $ = (selector, within = document) => within.querySelector(selector);

// --- theme: as the system has it, or as chosen ---------------------------------------------------

const THEMES = ["auto", "dark", "light"];
const theme = () => THEMES.find((each) => each === localStorage.getItem("theme")) || "auto";

function showTheme() {
  document.documentElement.dataset.theme = theme();
  const button = $("[data-theme-switch]");
  if (button) button.textContent = `Theme: ${theme()}`;
  charts.forEach((each) => each.redraw());
}

// --- away and back -------------------------------------------------------------------------------

const ASK_AGAIN_MS = 2000;
let awaySince = null;

function away() {
  if (awaySince) return;
  awaySince = Date.now();
  document.body.classList.add("is-away");
  tellAway();
}

function tellAway() {
  if (!awaySince) return;
  const seconds = Math.round((Date.now() - awaySince) / 1000);
  const note = $("#away");
  note.hidden = false;
  note.textContent = `The service went away ${seconds} s ago. What you see is from then; asking again.`;
  setTimeout(askAgain, ASK_AGAIN_MS);
}

async function askAgain() {
  try {
    const answer = await fetch("/v1/whoami", { cache: "no-store" });
    if (answer.status === 401) return location.reload(); // it is back, and has no sessions yet
    if (answer.ok && awaySince && Date.now() - awaySince > 15000) return location.reload();
  } catch {
    // still away
  }
  tellAway();
}

function back() {
  if (!awaySince) return;
  awaySince = null;
  document.body.classList.remove("is-away");
  $("#away").hidden = true;
  if (charts.size) loadHistory();
}

// --- clicks, and the dialog that some open -------------------------------------------------------

// A page is seen before its scripts run, and a part of it before htmx has wired it.
const ready = new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve));

document.addEventListener("click", async ({ target }) => {
  const opener = target.closest("[data-dialog]");
  const cell = target.closest("[role=gridcell]");
  await ready;
  if (opener) htmx.ajax("GET", opener.dataset.dialog, { source: "#dialog", target: "#dialog-body" });
  if (cell) showShard(cell);
  if (target.closest("[data-close]")) $("#dialog").close();
  if (target.closest("[data-theme-switch]")) {
    localStorage.setItem("theme", THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
    showTheme();
  }
});

function showShard(cell) {
  const url = `${$("#grid").dataset.url}/shards/${cell.id.slice(1)}`;
  htmx.ajax("GET", url, { source: "#grid", target: "#shard", swap: "innerHTML" });
}

function openDialog() {
  const dialog = $("#dialog");
  if (!dialog.open) dialog.showModal();
  ($("[autofocus]", dialog) || $("button", dialog)).focus();
}

// --- charts --------------------------------------------------------------------------------------

const charts = new Set();
const KEPT = 900;
const LEAST_SECONDS = 60;

// The span of an axis of time; that of an empty chart ends now.
function lastSeconds(_chart, low, high) {
  const end = high ?? Date.now() / 1000;
  return [Math.min(low ?? end, end - LEAST_SECONDS), end];
}
let columns = [[], [], [], []];

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];
function shownSize(bytes) {
  let power = 0;
  while (bytes >= 999.5 && power < 5) [bytes, power] = [bytes / 1000, power + 1];
  return `${bytes.toFixed(power && bytes < 99.95 ? 1 : 0)} ${UNITS[power]}`;
}

const shownClock = (at) => new Date(at * 1000).toTimeString().slice(0, 8);

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function chart(place, series, suffix) {
  const axis = { stroke: () => colour("--dim"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false } };
  const values = (_chart, all) => all.map((value) => shownSize(value) + suffix);
  const clock = (_chart, all) => all.map((at) => shownClock(at));
  const made = new uPlot(
    {
      width: place.clientWidth,
      height: 150,
      padding: [10, 26, 0, 0],
      cursor: { drag: { x: false, y: false } },
      scales: { x: { range: lastSeconds }, y: { range: (_chart, _low, high) => [0, Math.max(high, 1000) * 1.1] } },
      axes: [{ ...axis, values: clock, space: 90, size: 28 }, { ...axis, size: 76, values }],
      series: [
        { value: (_chart, at) => (at == null ? "-" : shownClock(at)) },
        ...series.map(([label, variable]) => ({
          label,
          stroke: () => colour(variable),
          width: 1.5,
          points: { show: false },
          fill: () => `${colour(variable)}22`,
          value: (_chart, value) => (value == null ? "-" : shownSize(value) + suffix),
        })),
      ],
    },
    [[], ...series.map(() => [])],
    place,
  );
  new ResizeObserver(() => made.setSize({ width: place.clientWidth, height: 150 })).observe(place);
  charts.add(made);
  return made;
}

let rates = null;
let backlog = null;

function draw() {
  rates.setData([columns[0], columns[1], columns[2]]);
  backlog.setData([columns[0], columns[3]]);
}

async function loadHistory() {
  try {
    const answer = await fetch("/console/history");
    if (answer.ok) columns = await answer.json();
  } catch {
    return; // away again
  }
  draw();
}

function addSample(sample) {
  if (!rates || sample[0] <= columns[0][columns[0].length - 1]) return;
  columns.forEach((column, at) => {
    column.push(sample[at]);
    if (column.length > KEPT) column.shift();
  });
  draw();
}

function openCharts() {
  rates = chart($("#chart-rates"), [["acknowledged", "--accent"], ["drained", "--good"]], "/s");
  backlog = chart($("#chart-backlog"), [["not durable", "--near"]], "");
  loadHistory();
}

// --- the grid: only the lines that can be seen are in the page -----------------------------------

const LINE_PIXELS = 22;
const MOST_PIXELS = 420;
const BEYOND = 6;

// Lets a line be as it is, but for its age, unless a shard of it changed.
function change(old, line) {
  const [age, newAge] = [$(".age", old), $(".age", line)];
  if (age.textContent !== newAge.textContent) age.textContent = newAge.textContent;
  if (!line.isEqualNode(old)) old.replaceWith(line);
}

class Grid {
  constructor(element) {
    this.element = element;
    this.space = $(".space", element);
    this.asked = null;
    this.place();
    element.addEventListener("scroll", () => this.follow(), { passive: true });
    element.addEventListener("keydown", (event) => this.move(event));
    element.addEventListener("focusin", (event) => this.rove(event.target));
    new ResizeObserver(() => this.follow()).observe(element);
    this.rove($("[role=gridcell]", element));
  }

  place() {
    const window = $(".window", this.space);
    this.first = Number(window.dataset.first);
    this.rows = window.children.length;
    const pixels = Number(window.dataset.total) * LINE_PIXELS;
    this.space.style.height = `${pixels}px`;
    this.element.style.height = `${Math.min(pixels + 2, MOST_PIXELS)}px`;
    window.style.transform = `translateY(${this.first * LINE_PIXELS}px)`;
  }

  follow() {
    const top = Math.floor(this.element.scrollTop / LINE_PIXELS);
    const shown = Math.ceil(this.element.clientHeight / LINE_PIXELS);
    const total = this.space.clientHeight / LINE_PIXELS;
    if (top < this.first || Math.min(top + shown, total) > this.first + this.rows) this.load();
  }

  async load() {
    const top = Math.floor(this.element.scrollTop / LINE_PIXELS);
    const rows = Math.ceil(this.element.clientHeight / LINE_PIXELS) + 2 * BEYOND;
    if (this.asked) this.asked.abort();
    this.asked = new AbortController();
    const url = `${this.element.dataset.url}/lines?first=${Math.max(0, top - BEYOND)}&rows=${rows}`;
    try {
      const answer = await fetch(url, { signal: this.asked.signal });
      if (answer.ok) this.show(await answer.text());
    } catch {
      // another question came, or the service went away: the next update asks again
    }
  }

  show(lines) {
    const focused = this.element.contains(document.activeElement) ? document.activeElement.id : "";
    for (const each of this.space.querySelectorAll("[tabindex='0']")) each.tabIndex = -1;
    const template = document.createElement("template");
    template.innerHTML = lines;
    const [now, next] = [$(".window", this.space), $(".window", template.content)];
    const olds = [...now.children];
    if (now.dataset.first === next.dataset.first && olds.length === next.children.length) {
      [...next.children].forEach((line, at) => change(olds[at], line));
      now.dataset.total = next.dataset.total;
    } else {
      this.space.replaceChildren(next);
    }
    this.place();
    const again = focused && document.getElementById(focused);
    if (again) again.focus({ preventScroll: true });
    else this.rove($("[role=gridcell]", this.space));
  }

  rove(cell) {
    if (!cell || cell.getAttribute("role") !== "gridcell") return;
    for (const each of this.space.querySelectorAll("[tabindex='0']")) each.tabIndex = -1;
    cell.tabIndex = 0;
  }

  move(event) {
    const cell = event.target.closest("[role=gridcell]");
    if (!cell) return;
    const line = cell.parentElement;
    const at = [...line.children].indexOf(cell);
    const lines = { ArrowUp: line.previousElementSibling, ArrowDown: line.nextElementSibling };
    let next = null;
    if (event.key === "ArrowLeft") next = cell.previousElementSibling;
    else if (event.key === "ArrowRight") next = cell.nextElementSibling;
    else if (event.key === "Home") next = line.children[1];
    else if (event.key === "End") next = line.lastElementChild;
    else if (event.key in lines) next = lines[event.key] && lines[event.key].children[Math.min(at, lines[event.key].children.length - 1)];
    else if (event.key === "Enter" || event.key === " ") showShard(cell);
    else return;
    event.preventDefault();
    if (next && next.getAttribute("role") === "gridcell") next.focus();
  }
}

// --- together ------------------------------------------------------------------------------------

function takesNoSwap(event) {
  const selection = document.getSelection();
  return !selection.isCollapsed && event.target.contains(selection.anchorNode);
}

// A page without a grid is of a step that was not here: shows the grid once shards of it came.
function showIfHere() {
  const counts = [...document.querySelectorAll("#section-legend b")].map((each) => Number(each.textContent));
  if (counts.some(Boolean) && !$("#dialog").open) location.reload();
}

document.documentElement.dataset.theme = theme();

document.addEventListener("DOMContentLoaded", () => {
  showTheme();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
  const grid = $("#grid") && new Grid($("#grid"));
  if ($("#chart-rates")) openCharts();

  document.addEventListener("htmx:sseOpen", back);
  document.addEventListener("htmx:sseError", away);
  document.addEventListener("htmx:sendError", away);
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    const { id } = event.target;
    if (id === "sample") addSample(JSON.parse(event.detail.data));
    if (id === "grid-changed" && grid) grid.load();
    if (id === "grid-changed" && !grid) showIfHere();
    if (id === "sample" || id === "grid-changed" || takesNoSwap(event)) event.preventDefault();
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    // What did not work is said where the answer would have been.
    if (["dialog-body", "shard"].includes(event.detail.target?.id)) event.detail.shouldSwap = true;
  });
  // Not before htmx has the form: who is quick with Enter would send it past the script.
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target?.id === "dialog-body") openDialog();
  });
  if (!grid) $("#dialog")?.addEventListener("close", showIfHere);
});
