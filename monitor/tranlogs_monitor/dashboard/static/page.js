// Draws the charts from /data.json, and fetches page and numbers anew at each interval. The page is readable without it.
"use strict";

const page = document.body.dataset;
const charts = new Map();
let numbers = null;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

function bytes(n) {
  if (n == null) return "-";
  const power = n < 1 ? 0 : Math.min(Math.floor(Math.log2(n) / 10), UNITS.length - 1);
  return `${(n / 1024 ** power).toFixed(power ? 1 : 0)} ${UNITS[power]}`;
}

function short(n) {
  if (n >= 1e6) return `${+(n / 1e6).toPrecision(3)} M`;
  return n >= 1e4 ? `${+(n / 1e3).toPrecision(3)} k` : `${n}`;
}

function steps(n) {
  return n == null ? "-" : n.toLocaleString("en");
}

function number(n) {
  return n == null ? "-" : `${+n.toPrecision(4)}`;
}

function moment(seconds) {
  return seconds == null ? "-" : new Date(seconds * 1000).toLocaleString("sv");
}

function ticks(chart, splits, axis, space, step) {
  return splits.map((at) => {
    const text = new Date(at * 1000).toLocaleString("sv"); // 2026-01-31 23:59:59
    return step >= 86400 ? text.slice(5, 10) : text.slice(11, step >= 60 ? 16 : 19);
  });
}

// What the legend shows: the value under the pointer, else the newest.
function told(show) {
  return (chart, n, at, index) => show(index == null ? chart.data[at].at(-1) : n);
}

function series(label, name, show, more) {
  return { label, stroke: colour(name), width: 2, points: { show: false }, value: told(show), ...more };
}

function options(lines, { show, width, range, incrs, isOverSteps = false, ...more }) {
  const line = { stroke: colour("grid"), width: 1 };
  const axis = { stroke: colour("quiet"), grid: line, ticks: line };
  return {
    series: [isOverSteps ? { label: "step", value: told(steps) } : { label: "time", value: told(moment) }, ...lines],
    axes: [{ ...axis, values: isOverSteps ? (chart, splits) => splits.map(short) : ticks, space: 64 }, { ...axis, values: (chart, splits) => splits.map(show), size: width, incrs }],
    scales: { x: { time: !isOverSteps }, y: { range } },
    cursor: { drag: { x: true, y: false } },
    legend: { markers: { fill: (chart, at) => chart.series[at].stroke(chart, at), width: 0 } },
    ...more,
  };
}

function faded(name, share) {
  const hex = colour(name);
  return hex + Math.round(share * 255).toString(16).padStart(2, "0");
}

function drawCheckpoints(chart) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.strokeStyle = colour("idle");
  ctx.setLineDash([4, 4]);
  for (const at of numbers.checkpoints) {
    const x = Math.round(chart.valToPos(at, "x", true)) + 0.5;
    if (x >= bbox.left && x <= bbox.left + bbox.width) {
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
  }
  ctx.restore();
}

const CHARTS = {
  scalars: drawScalars,
  steps(found) {
    const names = Object.keys(found.steps);
    // synced lies on committed, persisted on archived, or nearly: the lower one is the wider line, so that none hides the other.
    const lines = names.map((name, i) => series(name, name, steps, i % 2 ? { width: 5, alpha: 0.6 } : {}));
    const order = names.map((_, i) => names.length - 1 - i);
    return {
      options: options(order.map((i) => lines[i]), { show: short, width: 52 }),
      data: [found.times, ...order.map((i) => found.steps[names[i]])],
    };
  },
  bytes(found) {
    const lines = [
      series("log and checkpoints", "committed", bytes, { fill: faded("committed", 0.18) }),
      series("checkpoints", "synced", bytes, { fill: faded("synced", 0.3) }),
    ];
    if (found.bytes.budget) lines.push(series("budget", "problem", bytes, { dash: [6, 4] }));
    const top = (chart, low, high) => [0, 1.08 * Math.max(high, 1)];
    const incrs = Array.from({ length: 50 }, (_, i) => 2 ** i);
    return { options: options(lines, { show: bytes, width: 80, range: top, incrs }), data: [found.times, ...Object.values(found.bytes)] };
  },
  values(found) {
    const many = Math.max(found.values.length, 1);
    const lines = found.values.map((one, i) => series(
      `segment ${one.segment}`, "free", steps, { stroke: faded("free", 0.35 + 0.65 * (i + 1) / many), width: 1.5 }));
    const about = { show: (n) => n.toFixed(1), width: 40, range: () => [0, 1.03], legend: { show: false }, hooks: { draw: [drawCheckpoints] } };
    return { options: options(lines, about), data: [found.times, ...found.values.map((one) => one.values)] };
  },
};

function drawScalars(found) {
  const names = Object.keys(found.scalars.columns);
  const colours = ["committed", "archived", "synced", "persisted"];
  // Other scalars than losses have scales of their own: a click on the legend shows them.
  const isLoss = (name) => name.includes("loss") || !names.some((one) => one.includes("loss"));
  const lines = names.map((name, i) => series(name, colours[i % colours.length], number, { spanGaps: true, show: isLoss(name) }));
  const about = { show: number, width: 64, isOverSteps: true };
  return { options: options(lines, about), data: [found.scalars.steps, ...Object.values(found.scalars.columns)] };
}

function draw() {
  for (const [name, make] of Object.entries(CHARTS)) {
    const place = document.getElementById(`chart-${name}`);
    if (place === null || numbers === null) continue;
    const { options: how, data } = make(numbers);
    const isEmpty = data[0].length < 2 || data.length < 2;
    place.classList.toggle("empty", isEmpty);
    charts.get(name)?.destroy();
    charts.delete(name);
    const begins = name === "scalars" ? "" : "The curve begins with the second evaluation.";
    place.textContent = isEmpty ? begins : "";
    if (isEmpty) continue;
    const size = { width: place.clientWidth, height: 240 };
    charts.set(name, new uPlot({ ...how, ...size }, data, place));
  }
}

function resize() {
  for (const [name, chart] of charts) {
    const width = document.getElementById(`chart-${name}`).clientWidth;
    if (width !== chart.width) chart.setSize({ width, height: 240 });
  }
}

async function fetched(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
  return answer;
}

function renew(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  for (const old of document.querySelectorAll("[data-live]")) {
    const made = fresh.querySelector(`[data-live="${old.dataset.live}"]`);
    if (made === null || made.innerHTML === old.innerHTML) continue;
    const isOpen = old.querySelector("details")?.open;
    old.className = made.className;
    old.replaceChildren(...made.childNodes);
    if (isOpen) old.querySelector("details")?.setAttribute("open", "");
  }
}

async function renewAll() {
  const address = location.href;
  const text = await (await fetched(address)).text();
  if (address === location.href) renew(text); // else more was typed meanwhile
}

async function look(isFirst) {
  try {
    if (!isFirst) await renewAll();
    if (page.journal !== undefined) {
      numbers = await (await fetched(`/data.json?journal=${encodeURIComponent(page.journal)}`)).json();
      draw();
    }
    document.getElementById("silent").hidden = true;
  } catch {
    document.getElementById("silent").hidden = false;
  }
  page.looks = Number(page.looks ?? 0) + 1;
  setTimeout(look, 1000 * Math.min(Math.max(Number(page.interval), 0.2), 60));
}

// The list follows what is typed. The address has the words, too, for the next look and for a bookmark.
async function narrow(event) {
  const address = new URL(location.href);
  address.searchParams.set("words", event.target.value);
  history.replaceState(null, "", address);
  try {
    await renewAll();
  } catch {
    document.getElementById("silent").hidden = false;
  }
}

document.getElementById("words")?.addEventListener("input", narrow);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("resize", resize);
look(true);
