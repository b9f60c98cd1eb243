// The page of one key: the state of its rules, and the changes that operators can make.

import { askNote, card, complain, h, put, say, table } from "./dom.js";
import * as format from "./format.js";
import { get, newest, send, user } from "./server.js";

/** Why there is no answer of Redis for a rule whose state is there. */
const UNANSWERED = {
  late: "timed out", down: "is unreachable", busy: "has too many pending requests", failed: "returned an error",
  foreign: "has another value under the name", garbled: "sent an invalid answer",
};

/** Decision of the queue about the next request of a client. */
export function queueInWords(queue) {
  const share = queue.is_ahead ? "ahead of its share" : "within its share";
  const observing = queue.in_force ? "" : " The gate is in observe mode and would forward it at once.";
  if (queue.decision === "admit") return `The queue would admit it at once; the client is ${share}.${observing}`;
  const wait = `estimated wait ${format.span(queue.wait_ms)}, position ${format.count(queue.position)}, ${share}`;
  return `The queue would ${queue.decision} it: ${queue.reason} (${wait}).${observing}`;
}

/** Table of the rules and their decisions. */
export function rulesTable() {
  return table([
    { name: "Rule", of: (row) => row.rule, class: "key" },
    { name: "Class", of: (row) => row.class },
    { name: "Decision", of: (row) => h("span", { class: `pill ${row.decision}` }, row.decision) },
    { name: "Reason", of: (row) => row.reason },
    { name: "Decided by", of: decidedBy },
    { name: "Left", of: (row) => format.count(row.remaining), num: true },
    { name: "Over by", of: (row) => row.over ? format.count(row.over) : "–", num: true },
    { name: "Level", of: (row) => row.level, num: true },
    { name: "Until", of: (row) => row.until ? format.date(row.until) : "–", num: true },
    { name: "Next in", of: (row) => row.reset_ms ? format.span(row.reset_ms) : "now", num: true },
    { name: "Full in", of: (row) => row.clear_ms ? format.span(row.clear_ms) : "now", num: true },
  ], "Rules and their decisions", (row) => row.rule);
}

/** Where the decision of a rule was made. */
function decidedBy(row) {
  if (row.redis_unanswered) return `this gate: Redis ${UNANSWERED[row.redis_unanswered] ?? "did not answer"}`;
  return row.by === "redis" ? "Redis" : "this gate";
}

/** Past refusals of a key, as a table. */
export function refusalsTable() {
  return table([
    { name: "Last", of: (row) => format.date(row.last_at) },
    { name: "First", of: (row) => format.date(row.first_at) },
    { name: "Times", of: (row) => format.count(row.count), num: true },
    { name: "By", of: (row) => row.rule ? `rule ${row.rule}` : "the fair queue" },
    { name: "Key", of: (row) => row.key, class: "key" },
    { name: "Because", of: (row) => row.decision === "refuse" ? row.reason : `${row.reason} (only observed)` },
    { name: "Usage", of: (row) => usage(row, row.observed), num: true },
    { name: "Limit", of: (row) => usage(row, row.allowed), num: true },
    { name: "Retry after", of: (row) => format.span(row.retry_after_ms), num: true },
  ], "Recent refusals", (row) => JSON.stringify([row.first_at, row.rule, row.key, row.reason]));
}

/** A usage or a limit: a time if the estimated wait was too long, otherwise a count. */
function usage({ reason }, number) {
  return reason === "wait-too-long" ? format.span(number) : format.count(number);
}

/** A link to the page that explains a request, filled in with one of this key. */
function explainLink({ client, method, path, headers }) {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`).join("\n");
  const filled = Object.entries({ client, method, path, headers: lines }).filter(([, value]) => value);
  return h("a", { href: `#/explain?${new URLSearchParams(filled)}` }, "Explain a request with this key");
}

/** Values by name; absent ones are left out. */
function facts(pairs) {
  const given = pairs.filter(([, value]) => value !== null && value !== undefined);
  return h("dl", { class: "facts" }, given.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** Time, name and note of a cleared flag. */
function clearedInWords({ cleared_at, cleared_by, note }) {
  return `${format.date(cleared_at)} by ${cleared_by}: ${note}`;
}

export function keyPage(parameters) {
  const [cls, key] = [parameters.get("class") ?? "", parameters.get("key") ?? ""];
  const rules = rulesTable();
  const refusals = refusalsTable();
  const recent = h("div");
  const queue = h("p", { hidden: true });
  const exempt = h("p", { class: "lead", hidden: true });
  const cut = h("p", { class: "lead", hidden: true },
    "This key is too long and was shortened to its start and a digest. Its rules are shown and cleared at this gate "
    + "only. To exempt it, add it to ", h("code", {}, "unless"), " of the rule.");
  const link = h("p", { hidden: true });
  const duration = (minutes) => h("option", { value: minutes * 60_000 }, format.span(minutes * 60_000));
  const minutes = h("select", { id: "exempt-for" }, [10, 60, 240, 1440].map(duration));
  const buttons = h("div", { class: "bar", hidden: true });

  const refresh = newest(() => get("key", { class: cls, key }), (detail) => {
    const { bucket, episode, flags } = detail;
    const unruled = detail.cut ? "No rule has throttled this key." : "No rule depends on this key alone.";
    rules.show(detail.rules ?? [], unruled);
    refusals.show(detail.refusals ?? [], "No recorded refusal in the last 24 hours.");
    queue.textContent = detail.queue ? queueInWords(detail.queue) : "";
    queue.hidden = !detail.queue;
    cut.hidden = !detail.cut;
    link.hidden = !detail.request || detail.cut;
    if (!link.hidden && !link.firstChild) put(link, explainLink(detail.request));
    put(recent, facts([
      ["Share of CPU", bucket && format.percent(bucket.share)],
      ["Requests per second", bucket && format.rate(bucket.requests_per_second)],
      ["Average wait", bucket && format.span(bucket.wait_ms)], ["Requests", bucket && format.count(bucket.requests)],
      ["Held", bucket && format.count(bucket.held)], ["Refused", bucket && format.count(bucket.refused)],
      ["Would be held", bucket?.would_hold ? format.count(bucket.would_hold) : null],
      ["Would be refused", bucket?.would_refuse ? format.count(bucket.would_refuse) : null],
      ["CPU time", bucket && format.span(bucket.cpu_ms)], ["First seen", bucket && format.date(bucket.first_seen)],
      ["Last seen", bucket && format.ago(bucket.last_seen)],
      ["Refused recently", episode && format.count(episode.rejected)],
      ["First refusal", episode && format.date(episode.first_at)],
      ["Flagged", flags?.[0] && !flags[0].cleared_at ? format.date(flags[0].flagged_at) : null],
      ["Last flag cleared", flags?.[0]?.cleared_at ? clearedInWords(flags[0]) : null],
    ]), !bucket && !episode && !flags?.length && h("p", { class: "empty" }, "No recent requests or refusals."));
    const until = detail.exempt_until && format.date(detail.exempt_until);
    exempt.textContent = until ? `Exempt from these rules until ${until}.` : "";
    exempt.hidden = end.hidden = !detail.exempt_until;
    buttons.hidden = user().role !== "operator" || !detail.rules;
  });

  async function change(heading, text, button, path, body, extra) {
    const words = await askNote({ heading, text, button, name: user().name, extra });
    if (!words) return;
    try {
      await send("POST", path, { class: cls, key, ...body(), ...words });
      complain("");
      say(`${heading}: done.`);
      await refresh();
    } catch (error) {
      complain(error.message);
    }
  }

  const endExemption = () => change("End the exemption", "All rules apply to this key again at once.", "End it",
    "key/exempt", () => ({ for_ms: 0 }));
  const end = h("button", { type: "button", hidden: true, onclick: endExemption }, "End the exemption…");
  put(buttons,
    h("button", { type: "button", onclick: () => change("Clear this key",
      `Resets the usage, debt and blocks of this key in all rules with class ${cls}. Rules of other classes, such as `
      + "those of a network that it shares with others, are unchanged.", "Clear", "key/clear", () => ({})) }, "Clear…"),
    h("button", { type: "button", onclick: () => change("Exempt this key",
      `Rules with class ${cls} do not apply to this key for a while. The fair queue still limits it to its share.`,
      "Exempt", "key/exempt", () => ({ for_ms: Number(minutes.value) }),
      [h("label", { for: "exempt-for" }, "Duration"), minutes]) }, "Exempt for a while…"), end);

  return {
    name: "spenders",
    async begin(main) {
      const loaded = refresh();
      put(main,
        h("div", {}, h("h1", { class: "key" }, key === "" ? "(none)" : key), h("p", { class: "lead" }, `class ${cls}`)),
        buttons, exempt, cut, link,
        card("Rules", "all rules that apply, and their decision about the next request", rules.node, queue),
        card("Recent refusals", "by any rule or the fair queue, the latest first, for 24 hours", refusals.node),
        card("Recent activity", "", recent));
      await loaded;
    },
    onStatus: () => refresh(),
  };
}
