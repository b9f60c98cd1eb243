// The overview: the current state, and charts of the last hour.

import { chart } from "./charts.js";
import { card, h, prose, put, table } from "./dom.js";
import * as format from "./format.js";
import { get } from "./server.js";

const HOUR_MS = 3_600_000;
const ROLES_WITHOUT_REQUESTS = {
  master: "A master: it shares the state of rules between gates and serves no requests itself.",
  watch: "A watch without a gate: it records the refusals that gateways report.",
};

/** A number with its label. */
function tile(name, look) {
  const value = h("span", {}, "–");
  const sub = h("span", { class: "sub" });
  return {
    node: h("div", { class: "tile" },
      h("dt", {}, look && h("span", { class: `dot ${look}`, "aria-hidden": "true" }), name),
      h("dd", {}, value, sub)),
    show(text, below) { value.textContent = text; sub.textContent = below ?? ""; },
  };
}

export function overview() {
  // Requested first, so that the response arrives while the page is built.
  const requested = get("history", { step: 10 });
  const tiles = {
    admitted: tile("Admitted", "admitted"), held: tile("Held", "held"), refused: tile("Refused", "refused"),
    waiting: tile("Waiting"), flight: tile("In flight"), times: tile("Response time"), cpu: tile("CPU in use"),
    connections: tile("Connections"),
  };
  const why = h("p", { class: "lead" });
  const notices = h("div", { class: "notices", role: "status" });
  const requests = chart("Requests per second over the last hour", [
    { name: "admitted", of: (sample) => sample.admitted, look: "admitted", stacked: true },
    { name: "refused", of: (sample) => sample.refused, look: "refused", stacked: true },
    { name: "held", of: (sample) => sample.held, look: "held" },
  ], format.rate);
  const times = chart("Response times over the last hour", [
    { name: "99th percentile", of: (sample) => sample.p99_ms, look: "slow" },
    { name: "median", of: (sample) => sample.p50_ms, look: "fast" },
  ], format.span);
  const queue = chart("Requests in flight and waiting over the last hour", [
    { name: "in flight", of: (sample) => sample.in_flight, look: "admitted", stacked: true },
    { name: "waiting", of: (sample) => sample.waiting, look: "held", stacked: true },
    { name: "limit in flight", of: (sample) => sample.in_flight_max, look: "fast", dashed: true },
  ], format.count);
  const cpu = chart("CPU of the backend in use over the last hour", [
    { name: "cores in use", of: (sample) => sample.cpu, look: "admitted", stacked: true },
  ], format.rate);
  const backends = table([
    { name: "Backend", of: (row) => row.url, class: "key" },
    { name: "Sites", of: (row) => (row.sites ?? []).join(", ") || "–" },
    { name: "State", of: (row) => h("span", { class: `pill ${row.up ? "up" : "down"}` }, row.up ? "up" : "down") },
    { name: "In flight", of: (row) => format.count(row.in_flight), num: true },
    { name: "Limit", of: (row) => format.count(row.in_flight_max), num: true },
    { name: "Waiting", of: (row) => format.count(row.waiting), num: true },
    { name: "CPU", of: (row) => format.rate(row.cores), num: true },
  ], "Backends", (row) => row.url);
  const rules = table([
    { name: "Rule", of: (row) => row.name, class: "key" },
    { name: "Class", of: (row) => row.class },
    { name: "Held", of: (row) => format.count(row.held), num: true },
    { name: "Refused", of: (row) => format.count(row.refused), num: true },
    { name: "Only observed", of: (row) => format.count(row.would_hold + row.would_refuse), num: true },
  ], "Rules and their decisions", (row) => JSON.stringify([row.domain, row.name]));
  const fleet = table([
    { name: "Peer", of: (row) => row.kind },
    { name: "Address", of: (row) => row.name || "–", class: "key" },
    { name: "State", of: (row) => h("span", { class: `pill ${row.up ? "up" : "down"}` }, row.up ? "up" : "down") },
    { name: "Details", of: (row) => row.state },
    { name: "Lag", of: (row) => format.span(row.lag_ms), num: true },
    { name: "Counters", of: (row) => counters(row.figures) },
  ], "Gates, masters and Redis servers that this process is connected to", (row) => `${row.kind} ${row.name}`);
  let samples = [];
  let recentCpu = [];
  /** All widths are read before anything is drawn, because reading one after a change forces a layout of the page. */
  function draw() {
    const charts = [requests, times, queue, cpu];
    const widths = charts.map((one) => one.width());
    charts.forEach((one, index) => one.draw(samples, widths[index]));
  }
  const serving = h("div", { class: "stack" });
  const others = card("Fleet", "gates, masters and Redis", fleet.node);
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
          card("Requests", "per second", requests.node),
          card("Response time", "of all clients, with their wait", times.node),
          card("Queue", "in flight and waiting", queue.node), card("CPU", "cores, charged to requests", cpu.node)),
        h("div", { class: "grid" },
          card("Rules", "since the start", rules.node), card("Backends", "where requests go, CPU in cores", backends.node)));
      const [history, now] = await Promise.all([requested, status]);
      samples = history.samples;
      if (now) this.onStatus(now); else draw();
    },
    onStatus(status) {
      const last = status.last_second;
      const cores = status.cores ?? 1;
      why.textContent = ROLES_WITHOUT_REQUESTS[status.role] ?? `${bandInWords(status.band)} ${observedInWords(status)}`;
      showNotices(notices, status.notices ?? []);
      serving.hidden = !status.requests;
      others.hidden = !status.fleet?.length;
      fleet.show(status.fleet ?? [], "None.");
      if (last) {
        tiles.admitted.show(format.rate(last.admitted), "per second");
        tiles.held.show(format.rate(last.held), "per second");
        tiles.refused.show(format.rate(last.refused), "per second");
        tiles.times.show(format.span(last.p50_ms), `median; 99th percentile ${format.span(last.p99_ms)}`);
        recentCpu = [...recentCpu.slice(-4), last.cpu];
        // Averaged, because a request is charged when it ends, which makes single seconds jump.
        const average = recentCpu.reduce((sum, one) => sum + one, 0) / recentCpu.length;
        const unit = cores === 1 ? "core" : "cores";
        tiles.cpu.show(format.percent(Math.min(1, average / cores)), `of ${format.rate(cores)} ${unit}, average of 5 s`);
        // The history is in steps of ten seconds; samples that follow are of one second.
        if (samples.at(-1)?.at_ms !== last.at_ms) samples.push(last);
        samples = samples.filter((sample) => sample.at_ms > last.at_ms - HOUR_MS);
        draw();
      }
      if (status.requests) {
        const waiting = status.requests.waiting + status.requests.holding;
        tiles.waiting.show(format.count(waiting), "in the queue or held by a rule");
        const limit = `limit ${format.count(status.requests.in_flight_max)} for each kind of request`;
        tiles.flight.show(format.count(status.requests.in_flight), limit);
      }
      tiles.connections.show(format.count(status.connections), "of clients");
      backends.show(status.backends ?? [], "No backend.");
      rules.show(withQueue(status), "No rules: only the fair queue applies.");
    },
  };
}

/** Decisions of the rules, with a row for the fair queue. */
function withQueue({ rules, requests, observed }) {
  if (!requests) return [];
  const others = (name) => Math.max(0, requests[name] - rules.reduce((sum, rule) => sum + rule[name], 0));
  return [...rules, {
    name: "(the fair queue)", class: "ip/32", held: others("held"), refused: others("refused"),
    would_hold: observed?.queue_would_hold ?? 0, would_refuse: observed?.queue_would_refuse ?? 0,
  }];
}

/** Shows notices with the settings that resolve them. Unchanged notices stay: screen readers would repeat new ones. */
function showNotices(node, notices) {
  const text = JSON.stringify(notices);
  if (node.dataset.shown === text) return;
  node.dataset.shown = text;
  const sentence = ({ message, setting }) =>
    `${message.charAt(0).toUpperCase()}${message.slice(1)}${setting ? ":" : ""}`;
  put(node, ...notices.map((notice) => h("div", { class: "notice" },
    h("p", {}, prose(sentence(notice))), notice.setting && h("pre", {}, notice.setting))));
}

/** Counters of a peer as text. */
function counters(values) {
  const named = ([name, number]) => `${name.replaceAll("_", " ")} ${format.count(number)}`;
  return Object.entries(values).map(named).join(", ");
}

/** Decisions that a gate in observe mode did not enforce. */
function observedInWords({ mode, observed }) {
  if (mode !== "observe") return "";
  const { count, percent } = format;
  const part = (number) => `${count(number)} (${percent(observed.requests ? number / observed.requests : 0)})`;
  const client = ({ key, would_hold: held, would_refuse: refused }) =>
    `${key} (${count(held)} held, ${count(refused)} refused)`;
  const clients = observed.clients.map(client).join(", ");
  return `Observe mode: of ${count(observed.requests)} requests the gate would have held `
    + `${part(observed.would_hold)} and refused ${part(observed.would_refuse)}${clients ? `: ${clients}` : ""}.`;
}

/** The band, and the wait that determines it. */
function bandInWords(band) {
  if (!band) return "";
  const wait = `requests wait ${format.span(band.sustained_ms)} for the backend`;
  if (band.name === "normal") return `Normal: ${wait}. Elevated starts at ${format.span(band.elevated_ms)}.`;
  if (band.name === "elevated") return `Elevated: ${wait}. Critical starts at ${format.span(band.critical_ms)}.`;
  return `Critical: ${wait}. Clients below their share are served first. Penalties for clients over a limit are longer.`;
}
