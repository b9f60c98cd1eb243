// How things stand now, and over the last hour.

import { chart } from "./charts.js";
import { card, h, prose, put, table } from "./dom.js";
import * as figures from "./figures.js";
import { get } from "./server.js";

const HOUR_MS = 3_600_000;
const ROLES_WITHOUT_REQUESTS = {
  master: "A master: it keeps the books of gates, and serves no requests itself.",
  watch: "A watch without a gate: gateways report to it whom they refused.",
};

/** One figure with what it means. */
function tile(name, look) {
  const value = h("span", {}, "–");
  const sub = h("span", { class: "sub" });
  return {
    node: h("div", { class: "tile" }, h("dt", {}, look && h("span", { class: `dot ${look}`, "aria-hidden": "true" }), name), h("dd", {}, value, sub)),
    show(text, below) { value.textContent = text; sub.textContent = below ?? ""; },
  };
}

export function overview() {
  // Before anything else: the gate has answered by the time that there is something to draw on.
  const asked = get("history", { step: 10 });
  const tiles = {
    admitted: tile("Admitted", "admitted"), held: tile("Held", "held"), refused: tile("Refused", "refused"),
    waiting: tile("Waiting"), flight: tile("At the backend"), times: tile("Answer time"), cpu: tile("CPU in use"), connections: tile("Connections"),
  };
  const why = h("p", { class: "lead" });
  const notices = h("div", { class: "notices", role: "status" });
  const requests = chart("Requests per second over the last hour", [
    { name: "admitted", of: (sample) => sample.admitted, look: "admitted", stacked: true },
    { name: "refused", of: (sample) => sample.refused, look: "refused", stacked: true },
    { name: "held", of: (sample) => sample.held, look: "held" },
  ], figures.rate);
  const times = chart("Answer times over the last hour", [
    { name: "99th percentile", of: (sample) => sample.p99_ms, look: "slow" },
    { name: "median", of: (sample) => sample.p50_ms, look: "fast" },
  ], figures.span);
  const queue = chart("Requests at the backend and waiting over the last hour", [
    { name: "at the backend", of: (sample) => sample.in_flight, look: "admitted", stacked: true },
    { name: "waiting", of: (sample) => sample.waiting, look: "held", stacked: true },
    { name: "at most at the backend", of: (sample) => sample.in_flight_max, look: "fast", dashed: true },
  ], figures.count);
  const cpu = chart("CPU of the backend in use over the last hour", [{ name: "cores in use", of: (sample) => sample.cpu, look: "admitted", stacked: true }], figures.rate);
  const backends = table([
    { name: "Backend", of: (row) => row.url, class: "key" },
    { name: "State", of: (row) => h("span", { class: `pill ${row.up ? "up" : "down"}` }, row.up ? "up" : "down") },
    { name: "In flight", of: (row) => figures.count(row.in_flight), num: true },
    { name: "At most", of: (row) => figures.count(row.in_flight_max), num: true },
    { name: "Waiting", of: (row) => figures.count(row.waiting), num: true },
    { name: "Cores", of: (row) => figures.rate(row.cores), num: true },
  ], "Backends", (row) => row.url);
  const rules = table([
    { name: "Rule", of: (row) => row.name, class: "key" },
    { name: "Class", of: (row) => row.class },
    { name: "Held", of: (row) => figures.count(row.held), num: true },
    { name: "Refused", of: (row) => figures.count(row.refused), num: true },
    { name: "Only observed", of: (row) => figures.count(row.would_hold + row.would_refuse), num: true },
  ], "Rules, and what they have done", (row) => JSON.stringify([row.domain, row.name]));
  const fleet = table([
    { name: "With", of: (row) => row.kind },
    { name: "Where", of: (row) => row.name || "–", class: "key" },
    { name: "State", of: (row) => h("span", { class: `pill ${row.up ? "up" : "down"}` }, row.up ? "up" : "down") },
    { name: "How it goes", of: (row) => row.state },
    { name: "Lag", of: (row) => figures.span(row.lag_ms), num: true },
    { name: "Counted", of: (row) => Object.entries(row.figures).map(([name, number]) => `${name.replaceAll("_", " ")} ${figures.count(number)}`).join(", ") },
  ], "Others that this process works with", (row) => `${row.kind} ${row.name}`);
  let samples = [];
  let lately = [];
  /** All widths are asked for before anything is drawn: a browser that is asked after a change works out the whole page again. */
  function draw() {
    const charts = [requests, times, queue, cpu];
    const widths = charts.map((one) => one.width());
    charts.forEach((one, place) => one.draw(samples, widths[place]));
  }
  const serving = h("div", { class: "stack" });
  const others = card("Fleet", "others that this works with", fleet.node);
  others.hidden = true;

  return {
    name: "overview",
    async begin(main, status) {
      put(main,
        h("div", {}, h("h1", {}, "Overview"), why),
        notices,
        serving, others);
      put(serving,
        h("dl", { class: "tiles" }, Object.values(tiles).map((one) => one.node)),
        h("div", { class: "grid" },
          card("Requests", "per second", requests.node), card("Answer time", "waiting included", times.node),
          card("Queue", "at the backend, and before it", queue.node), card("CPU", "cores, charged to requests", cpu.node)),
        h("div", { class: "grid" }, card("Rules", "since the start", rules.node), card("Backends", "where requests go", backends.node)));
      const [history, now] = await Promise.all([asked, status]);
      samples = history.samples;
      if (now) this.told(now); else draw();
    },
    told(status) {
      const last = status.last_second;
      const cores = status.cores ?? 1;
      why.textContent = ROLES_WITHOUT_REQUESTS[status.role] ?? `${bandInWords(status.band)} ${observedInWords(status)}`;
      showNotices(notices, status.notices ?? []);
      serving.hidden = !status.requests;
      others.hidden = !status.fleet?.length;
      fleet.show(status.fleet ?? [], "Nobody.");
      if (last) {
        tiles.admitted.show(figures.rate(last.admitted), "per second");
        tiles.held.show(figures.rate(last.held), "per second");
        tiles.refused.show(figures.rate(last.refused), "per second");
        tiles.times.show(figures.span(last.p50_ms), `median, 99 of 100 within ${figures.span(last.p99_ms)}`);
        lately = [...lately.slice(-4), last.cpu];
        // A request is charged when it ends, which makes single seconds jump.
        tiles.cpu.show(figures.percent(lately.reduce((sum, cpu) => sum + cpu, 0) / lately.length / cores), `of ${figures.rate(cores)} ${cores === 1 ? "core" : "cores"}, on average of 5 s`);
        // The last hour is in steps of ten seconds, what comes after it is by the second.
        if (samples.at(-1)?.at_ms !== last.at_ms) samples.push(last);
        samples = samples.filter((sample) => sample.at_ms > last.at_ms - HOUR_MS);
        draw();
      }
      if (status.requests) {
        tiles.waiting.show(figures.count(status.requests.waiting + status.requests.holding), "for their turn or their moment");
        tiles.flight.show(figures.count(status.requests.in_flight), `of at most ${figures.count(status.requests.in_flight_max)}`);
      }
      tiles.connections.show(figures.count(status.connections), "of clients");
      backends.show(status.backends ?? [], "No backend.");
      rules.show(withQueue(status), "No rules: everybody gets a fair share.");
    },
  };
}

/** What rules have done, and what the fair queue has: without it, nobody would know who refused most. */
function withQueue({ rules, requests, observed }) {
  if (!requests) return [];
  const others = (name) => Math.max(0, requests[name] - rules.reduce((sum, rule) => sum + rule[name], 0));
  return [...rules, { name: "(the fair queue)", class: "ip/32", held: others("held"), refused: others("refused"), would_hold: observed?.queue_would_hold ?? 0, would_refuse: observed?.queue_would_refuse ?? 0 }];
}

/** Advice for the operator, each with the setting to write. Unchanged advice is left alone: a screen reader would read it again every second. */
function showNotices(node, notices) {
  const text = JSON.stringify(notices);
  if (node.dataset.shown === text) return;
  node.dataset.shown = text;
  put(node, ...notices.map((notice) => h("div", { class: "notice" }, h("p", {}, prose(`${notice.message.charAt(0).toUpperCase()}${notice.message.slice(1)}${notice.setting ? ":" : ""}`)), notice.setting && h("pre", {}, notice.setting))));
}

/** What a gate that only observes would have done, and to whom. */
function observedInWords({ mode, observed }) {
  if (mode !== "observe") return "";
  const part = (number) => figures.percent(observed.requests ? number / observed.requests : 0);
  const clients = observed.clients.map((client) => client.key).join(", ");
  return `Observing only: of ${figures.count(observed.requests)} requests it would have held ${part(observed.would_hold)} and refused ${part(observed.would_refuse)}${clients ? `: ${clients}` : ""}.`;
}

/** The band, and the number it was decided on. */
function bandInWords(band) {
  if (!band) return "";
  const wait = `requests wait ${figures.span(band.sustained_ms)}`;
  if (band.name === "normal") return `Normal: ${wait} for the backend; it counts as elevated from ${figures.span(band.elevated_ms)} on.`;
  if (band.name === "elevated") return `Elevated: ${wait} for the backend, for some time now; critical begins at ${figures.span(band.critical_ms)}.`;
  return `Critical: ${wait} for the backend. Who is over a limit waits longer; nobody else does.`;
}
