// One caller: what every rule has to say to it, and what can be done for it.

import { askNote, card, complain, h, put, say, table } from "./dom.js";
import * as figures from "./figures.js";
import { caller, get, newest, send } from "./server.js";

/** Why Redis was not heard about a rule whose state is there. */
const UNANSWERED = { late: "was too late", down: "is away", busy: "has too many waiting", failed: "cannot", foreign: "has something else there", garbled: "made no sense" };

/** What the queue would do to the next request of a client. */
export function queueInWords(queue) {
  const share = queue.is_ahead ? "ahead of its share" : "within its share";
  const observing = queue.in_force ? "" : " The gate only observes: it would go at once.";
  if (queue.decision === "admit") return `The queue would let it go at once; the client is ${share}.${observing}`;
  const wait = `estimated wait ${figures.span(queue.wait_ms)}, position ${figures.count(queue.position)}, ${share}`;
  return `The queue would ${queue.decision} it: ${queue.reason} (${wait}).${observing}`;
}

/** What rules say, as a table. */
export function rulesTable() {
  return table([
    { name: "Rule", of: (row) => row.rule, class: "key" },
    { name: "Class", of: (row) => row.class },
    { name: "Says", of: (row) => h("span", { class: `pill ${row.decision}` }, row.decision) },
    { name: "Because", of: (row) => row.reason },
    { name: "Asked", of: (row) => row.redis_unanswered ? `this gate: Redis ${UNANSWERED[row.redis_unanswered] ?? "did not answer"}` : row.by === "redis" ? "Redis" : "this gate" },
    { name: "Left", of: (row) => figures.count(row.remaining), num: true },
    { name: "Over by", of: (row) => row.over ? figures.count(row.over) : "–", num: true },
    { name: "Level", of: (row) => row.level, num: true },
    { name: "Until", of: (row) => row.until ? figures.date(row.until) : "–", num: true },
    { name: "Room in", of: (row) => row.reset_ms ? figures.span(row.reset_ms) : "now", num: true },
    { name: "All again in", of: (row) => row.clear_ms ? figures.span(row.clear_ms) : "now", num: true },
  ], "What each rule says", (row) => row.rule);
}

/** A link to the page that asks about a request, filled in with one of this caller. */
function explainLink({ client, method, path, headers }) {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`).join("\n");
  const filled = Object.entries({ client, method, path, headers: lines }).filter(([, value]) => value);
  return h("a", { href: `#/explain?${new URLSearchParams(filled)}` }, "Explain a request of this caller");
}

/** Figures by name. */
function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

export function keyPage(parameters) {
  const [cls, key] = [parameters.get("class") ?? "", parameters.get("key") ?? ""];
  const rules = rulesTable();
  const figuresOf = h("div");
  const exempt = h("p", { class: "lead", hidden: true });
  const cut = h("p", { class: "lead", hidden: true }, "This name is too long to be kept whole: a digest is in the place of its end. Rules are shown, and cleared, at this gate only; to exempt the caller, write it into the rule's ", h("code", {}, "unless"), ".");
  const asked = h("p", { hidden: true });
  const minutes = h("select", { id: "exempt-for" }, [10, 60, 240, 1440].map((one) => h("option", { value: one * 60_000 }, figures.span(one * 60_000))));
  const buttons = h("div", { class: "bar", hidden: true });

  const look = newest(() => get("key", { class: cls, key }), (detail) => {
    const { bucket, episode, flags } = detail;
    rules.show(detail.rules ?? [], detail.cut ? "No rule has throttled this caller." : "No rule tells callers apart this way.");
    cut.hidden = !detail.cut;
    asked.hidden = !detail.request || detail.cut;
    if (!asked.hidden && !asked.firstChild) put(asked, explainLink(detail.request));
    put(figuresOf, facts([
      ["Share of CPU", bucket && figures.percent(bucket.share)], ["Requests per second", bucket && figures.rate(bucket.requests_per_second)],
      ["Average wait", bucket && figures.span(bucket.wait_ms)], ["Requests", bucket && figures.count(bucket.requests)],
      ["Held", bucket && figures.count(bucket.held)], ["Refused", bucket && figures.count(bucket.refused)],
      ["In the queue now", detail.queue && queueInWords(detail.queue)],
      ["CPU time", bucket && figures.span(bucket.cpu_ms)], ["First seen", bucket && figures.date(bucket.first_seen)], ["Last seen", bucket && figures.ago(bucket.last_seen)],
      ["Refused in the last hour", episode && figures.count(episode.rejected)], ["Refusals began", episode && figures.date(episode.first_at)],
      ["Flagged", flags?.[0] && !flags[0].cleared_at ? figures.date(flags[0].flagged_at) : null],
      ["Last flag cleared", flags?.[0]?.cleared_at ? `${figures.date(flags[0].cleared_at)} by ${flags[0].cleared_by}: ${flags[0].note}` : null],
    ]), !bucket && !episode && !flags?.length && h("p", { class: "empty" }, "Nothing was seen of this caller lately."));
    exempt.textContent = detail.exempt_until ? `Exempt from these rules until ${figures.date(detail.exempt_until)}.` : "";
    exempt.hidden = end.hidden = !detail.exempt_until;
    buttons.hidden = caller().role !== "operator" || !detail.rules;
  });

  async function change(heading, text, button, path, body, extra) {
    const words = await askNote({ heading, text, button, name: caller().name, extra });
    if (!words) return;
    try {
      await send("POST", path, { class: cls, key, ...body(), ...words });
      complain("");
      say(`${heading}: done.`);
      await look();
    } catch (error) {
      complain(error.message);
    }
  }

  const end = h("button", { type: "button", hidden: true, onclick: () =>
    change("End the exemption", "All rules apply to it again at once.", "End it", "key/exempt", () => ({ for_ms: 0 })) }, "End the exemption…");
  put(buttons,
    h("button", { type: "button", onclick: () => change("Clear this key", `Every rule that tells callers apart by ${cls} forgets what this one has used, owes and is blocked for. Rules of wider networks, which it shares with others, do not.`, "Clear", "key/clear", () => ({})) }, "Clear…"),
    h("button", { type: "button", onclick: () => change("Exempt this key", `Rules that tell callers apart by ${cls} let it pass for a while. The fair queue still gives it no more than its share.`, "Exempt", "key/exempt",
      () => ({ for_ms: Number(minutes.value) }), [h("label", { for: "exempt-for" }, "For"), minutes]) }, "Exempt for a while…"), end);

  return {
    name: "spenders",
    async begin(main) {
      const looked = look();
      put(main, h("div", {}, h("h1", { class: "key" }, key === "" ? "(none)" : key), h("p", { class: "lead" }, `told apart by ${cls}`)),
        buttons, exempt, cut, asked, card("Rules", "every rule that touches it, and what each would say to its next request; after them it waits its turn in the fair queue, which refuses callers who have too much waiting already", rules.node), card("Lately", "", figuresOf));
      await looked;
    },
    told: () => look(),
  };
}
