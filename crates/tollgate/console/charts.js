// Charts as SVG: stacked areas, and lines.

import { h, put, s } from "./dom.js";
import { clock } from "./format.js";

/** Width of a chart before its layout is known, in pixels. */
const WIDTH = 620;
const HEIGHT = 190;
const LEFT = 52;
const BOTTOM = 22;
const TOP = 8;

/** Rounds up to a number with few digits. */
function ceiling(most) {
  if (most <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 2.5, 5, 10].map((times) => times * unit).find((round) => round >= most);
}

/** A chart of samples. A series is { name, of(sample), look, stacked, dashed }; `shown` formats a value. */
export function chart(label, series, shown) {
  const drawing = s("svg", { class: "chart", height: HEIGHT, role: "img", "aria-label": label });
  const dot = (look) => h("span", { class: `dot ${look}`, "aria-hidden": "true" });
  const legend = h("ul", { class: "legend" }, series.map((one) => h("li", {}, dot(one.look), one.name)));
  return {
    node: h("div", {}, drawing, legend),
    /** Actual width, so that text is not scaled, even on a phone. */
    width: () => drawing.clientWidth || WIDTH,
    draw(samples, width) {
      drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      const [from, to] = samples.length ? [samples[0].at_ms, samples.at(-1).at_ms] : [0, 1];
      const x = (sample) => LEFT + (width - LEFT - 4) * ((sample.at_ms - from) / Math.max(1, to - from));
      const stacked = series.filter((one) => one.stacked);
      const total = (sample) => stacked.reduce((sum, one) => sum + (one.of(sample) ?? 0), 0);
      const single = series.filter((one) => !one.stacked);
      const values = samples.flatMap((sample) => [total(sample), ...single.map((one) => one.of(sample) ?? 0)]);
      const most = ceiling(Math.max(0, ...values));
      const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
      const ticks = [0, most / 2, most].map((value) => [
        s("line", { class: "rule", x1: LEFT, x2: width, y1: y(value), y2: y(value) }),
        s("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, shown(value)),
      ]);
      const times = samples.length < 2 ? [] : [0, 0.5, 1].map((part) => s("text", {
        x: LEFT + (width - LEFT - 4) * part, y: HEIGHT - 6, "text-anchor": ["start", "middle", "end"][part * 2],
      }, clock(from + (to - from) * part, to - from < 600_000)));
      const text = s("title", {}, `${label}. ${describe(series, samples, shown)}`);
      put(drawing, text, bands(samples, x), ticks, areas(stacked, samples, x, y), lines(series, samples, x, y), times);
    },
  };
}

/** Text alternative of a chart. */
function describe(series, samples, shown) {
  const last = samples.at(-1);
  return last ? `Now: ${series.map((one) => `${one.name} ${shown(one.of(last) ?? 0)}`).join(", ")}.` : "No data yet.";
}

/** Background of the times at which the band was not normal. */
function bands(samples, x) {
  const drawn = [];
  samples.forEach((sample, index) => {
    if (sample.band === "normal" || index === 0) return;
    const [from, to] = [x(samples[index - 1]), x(sample)];
    const width = Math.max(1, to - from + 0.5);
    drawn.push(s("rect", { class: `band-${sample.band}`, x: from, y: TOP, width, height: HEIGHT - TOP - BOTTOM }));
  });
  return drawn;
}

function areas(stacked, samples, x, y) {
  const below = samples.map(() => 0);
  return stacked.map((one) => {
    const lower = samples.map((sample, index) => `${x(sample).toFixed(1)},${y(below[index]).toFixed(1)}`);
    samples.forEach((sample, index) => { below[index] += one.of(sample) ?? 0; });
    const upper = samples.map((sample, index) => `${x(sample).toFixed(1)},${y(below[index]).toFixed(1)}`);
    return s("polygon", { class: `area-${one.look}`, points: [...upper, ...lower.reverse()].join(" ") });
  });
}

function lines(series, samples, x, y) {
  return series.filter((one) => !one.stacked).map((one) => {
    let path = "";
    let pen = "M";
    for (const sample of samples) {
      const value = one.of(sample);
      if (value === null || value === undefined) { pen = "M"; continue; }
      path += `${pen}${x(sample).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    }
    return s("path", { class: `line line-${one.look}${one.dashed ? " dashed" : ""}`, d: path || "M0 0" });
  });
}

/** A small bar that shows a share. */
export function meter(share, text) {
  const part = Math.max(0, Math.min(1, share ?? 0));
  const look = part > 0.5 ? "fill high" : part > 0.25 ? "fill mid" : "fill";
  return h("span", { class: "meter" },
    s("svg", { width: 72, height: 8, viewBox: "0 0 72 8", "aria-hidden": "true" },
      s("rect", { class: "track", width: 72, height: 8, rx: 4 }),
      part > 0 && s("rect", { class: look, width: Math.max(3, 72 * part), height: 8, rx: 4 })),
    h("span", { class: "share" }, text));
}
