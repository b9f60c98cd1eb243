// The page of keys by CPU time of the backend.

import { meter } from "./charts.js";
import { h, put, search, table, title } from "./dom.js";
import * as format from "./format.js";
import { get, newest } from "./server.js";

/** Meanings of the columns. */
const MEANINGS = [
  ["Key", "An address, a network, a user agent, or another value of the class. This page opens on the class where the "
    + "load is concentrated: a crawler with many addresses of one network is many small rows under ip/32, and "
    + "one large row under ip/24."],
  ["Share of CPU", "Part of all backend cores that its requests used in the last ten seconds."],
  ["Requests/s", "Requests per second in the last ten seconds."],
  ["Average wait", "Average wait of its requests at the gate in the last ten seconds."],
  ["Held", "Requests held by the queue or a rule, since the key was first seen; in observe mode, those that would have "
    + "been. If only a rule is in observe mode, its number is behind a plus sign."],
  ["Refused", "The same for refused requests. Estimated while a client is refused over a thousand times per second."],
  ["Limit left", "Requests, or milliseconds of CPU time, left in the strictest rule."],
  ["Last seen", "Time since the last request."],
];

/** A link to the page of a key. */
export function keyLink(cls, key) {
  return h("a", { href: `#/key?${new URLSearchParams({ class: cls, key })}` }, key === "" ? "(none)" : key);
}

export function spenders() {
  // Until the gate has selected the class where the load is concentrated.
  let cls = "auto";
  let isObserving = false;
  const tabs = h("div", { class: "tabs", role: "group", "aria-label": "Class" });
  const list = table([
    { name: "Key", of: (row) => keyLink(row.class, row.key), class: "key" },
    { name: "Share of CPU", of: shareOf, num: true },
    { name: "Requests/s", of: (row) => format.rate(row.requests_per_second), num: true },
    { name: "Average wait", of: (row) => format.span(row.wait_ms), num: true },
    { name: "Held", of: (row) => row.held, num: true },
    { name: "Refused", of: (row) => row.refused, num: true },
    { name: "Limit left", of: (row) => row.left ?? "–", num: true },
    { name: "Last seen", of: (row) => row.seen, num: true },
  ], "Keys of this class, the highest CPU time first", (row) => JSON.stringify([row.class, row.key]));
  const found = search("Search", () => refresh());
  let known = "";

  /** A number of requests, and of those that observe mode let through. */
  function times(enforced, observed) {
    if (isObserving) return format.count(observed);
    return observed ? `${format.count(enforced)} + ${format.count(observed)} observed` : format.count(enforced);
  }

  const fetchKeys = () => get("buckets", { class: cls, top: 100, search: found.field.value });
  const refresh = newest(fetchKeys, ({ class: named, classes, buckets }) => {
    if (cls === "auto") cls = named;
    if (known !== classes.join()) {
      known = classes.join();
      put(tabs, classes.map((one) => h("button", {
        type: "button", "aria-pressed": String(one === cls), onclick: (event) => choose(one, event.target),
      }, one)));
    }
    list.show(buckets.map((row) => ({
      key: row.key, class: cls, share: row.share, requests_per_second: row.requests_per_second,
      wait_ms: row.wait_ms && Math.round(row.wait_ms), held: times(row.held, row.would_hold),
      refused: times(row.refused, row.would_refuse), left: left(row.rules),
      seen: format.since(row.idle_ms ?? 0),
    })), found.field.value ? "No key matches." : "No requests yet.");
  });

  async function choose(one, button) {
    cls = one;
    tabs.querySelectorAll("button").forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
    await refresh();
  }

  return {
    name: "spenders",
    async begin(main, status) {
      const loaded = status.then((now) => { isObserving = now?.mode === "observe"; return refresh(); });
      put(main,
        title("Spenders", "Keys by CPU time of the backend, the highest first. Shares and averages cover the last ten "
          + "seconds; counts start when the key was first seen."),
        h("div", { class: "bar" }, h("div", {}, h("span", { class: "visually-hidden" }, "Class"), tabs), found.node),
        h("section", { class: "card" }, list.node),
        h("details", { class: "card help" }, h("summary", {}, "Meaning of the columns"),
          h("dl", {}, MEANINGS.map(([name, meaning]) => [h("dt", {}, name), h("dd", {}, meaning)]))));
      await loaded;
    },
    onStatus: (status) => { isObserving = status.mode === "observe"; return refresh(); },
  };
}

/** The share of CPU as a bar. */
function shareOf(row) {
  return row.share === null ? "–" : meter(row.share, format.percent(row.share));
}

/** What is left in the strictest rule. */
function left(rules) {
  const remaining = rules.map((rule) => rule.remaining).filter((number) => number !== null);
  return remaining.length ? format.count(Math.min(...remaining)) : null;
}

