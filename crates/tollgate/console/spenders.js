// Who spends the backend's time.

import { meter } from "./charts.js";
import { h, put, search, table, title } from "./dom.js";
import * as figures from "./figures.js";
import { get, newest } from "./server.js";

/** What each column means. */
const MEANINGS = [
  ["Key", "One caller: an address, a network, a user agent, or whatever the class tells apart. This page opens on the class where the load is concentrated: a crawler with many addresses of one network is many small rows under ip/32, and one large row under ip/24."],
  ["Share of CPU", "The part of all cores of the backends that its requests used in the last ten seconds."],
  ["Requests/s", "Requests per second in the last ten seconds."],
  ["Average wait", "The time that its requests waited at the gate, on average of the last ten seconds."],
  ["Held", "Requests that waited for the queue or for a rule, since it was first seen."],
  ["Refused", "Requests that were refused, since it was first seen."],
  ["Limit left", "Requests, or milliseconds of CPU time, that its tightest rule has left."],
  ["Last seen", "The time since its last request."],
];

/** A link to the page of a key. */
export function keyLink(cls, key) {
  return h("a", { href: `#/key?${new URLSearchParams({ class: cls, key })}` }, key === "" ? "(none)" : key);
}

export function spenders() {
  // Until the gate has named the class where the load is concentrated.
  let cls = "auto";
  const tabs = h("div", { class: "tabs", role: "group", "aria-label": "Class" });
  const list = table([
    { name: "Key", of: (row) => keyLink(row.class, row.key), class: "key" },
    { name: "Share of CPU", of: (row) => row.share === null ? "–" : meter(row.share, figures.percent(row.share)), num: true },
    { name: "Requests/s", of: (row) => figures.rate(row.requests_per_second), num: true },
    { name: "Average wait", of: (row) => figures.span(row.wait_ms), num: true },
    { name: "Held", of: (row) => figures.count(row.held), num: true },
    { name: "Refused", of: (row) => figures.count(row.refused), num: true },
    { name: "Limit left", of: (row) => row.left ?? "–", num: true },
    { name: "Last seen", of: (row) => row.seen, num: true },
  ], "Callers of this class, who spend most first", (row) => JSON.stringify([row.class, row.key]));
  const found = search("Search", () => look());
  let known = "";

  const look = newest(() => get("buckets", { class: cls, top: 100, search: found.field.value }), ({ class: named, classes, buckets }) => {
    if (cls === "auto") cls = named;
    if (known !== classes.join()) {
      known = classes.join();
      put(tabs, classes.map((one) => h("button", { type: "button", "aria-pressed": String(one === cls), onclick: (event) => choose(one, event.target) }, one)));
    }
    list.show(buckets.map((row) => ({
      key: row.key, class: cls, share: row.share, requests_per_second: row.requests_per_second, wait_ms: row.wait_ms && Math.round(row.wait_ms),
      held: row.held, refused: row.refused, left: left(row.rules), seen: figures.since(row.idle_ms ?? 0),
    })), found.field.value ? "Nobody by that name." : "Nobody yet.");
  });

  async function choose(one, button) {
    cls = one;
    tabs.querySelectorAll("button").forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
    await look();
  }

  return {
    name: "spenders",
    async begin(main) {
      const looked = look();
      put(main, title("Spenders", "Who uses the backend's CPU time, the most first. Shares and averages are of the last ten seconds, counts since the caller was first seen."),
        h("div", { class: "bar" }, h("div", {}, h("span", { class: "visually-hidden" }, "Told apart by"), tabs), found.node),
        h("section", { class: "card" }, list.node),
        h("details", { class: "card help" }, h("summary", {}, "What the columns mean"), h("dl", {}, MEANINGS.map(([name, meaning]) => [h("dt", {}, name), h("dd", {}, meaning)]))));
      await looked;
    },
    told: () => look(),
  };
}

/** What the tightest rule leaves. */
function left(rules) {
  const remaining = rules.map((rule) => rule.remaining).filter((number) => number !== null);
  return remaining.length ? figures.count(Math.min(...remaining)) : null;
}

