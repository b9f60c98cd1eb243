// The page of flagged accounts.

import { askNote, complain, h, put, say, search, table, title } from "./dom.js";
import * as format from "./format.js";
import { get, newest, send, user } from "./server.js";
import { keyLink } from "./spenders.js";

export function flags() {
  let history = false;
  const canClear = (row) => !row.cleared_at && user().role === "operator";
  const clearButton = (account) =>
    h("button", { type: "button", "aria-label": `Clear the flag of ${account}`, onclick: () => clear(account) },
      "Clear…");
  const list = table([
    { name: "Account", of: (row) => keyLink(row.class, row.account), class: "key" },
    { name: "Flagged", of: (row) => format.date(row.flagged_at) },
    { name: "Refused", of: (row) => format.count(row.rejected), num: true },
    { name: "Cleared", of: (row) => (row.cleared_at ? `${format.date(row.cleared_at)} by ${row.cleared_by}` : "–") },
    { name: "Note", of: (row) => row.note ?? "–" },
    { name: "Action", class: "actions", of: (row) => (canClear(row) ? clearButton(row.account) : "") },
  ], "Flagged accounts, the latest first", (row) => `${row.account} ${row.flagged_at}`);
  const found = search("Search", () => refresh());
  const past = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
    history = !history;
    past.setAttribute("aria-pressed", String(history));
    refresh();
  } }, "Show cleared flags");
  const more = h("p", { class: "lead", role: "status" });
  const criterion = h("p", { class: "lead" });
  const fetchFlags = () => get("flags", { history: history ? 1 : "", search: found.field.value, top: 500 });
  const refresh = newest(fetchFlags, (answer) => {
    const rows = answer.flags.map((row) => ({ ...row, class: answer.account_class }));
    list.show(rows, found.field.value ? "No account matches." : "No account is flagged.");
    criterion.textContent = answer.threshold === null
      ? "Accounts are not flagged: [watch] has flags = false. Refusals are listed as episodes."
      : `Threshold: ${format.count(answer.threshold)} refusals of one account within ` +
        `${format.span(answer.window_ms)}. Accounts are keys of the class ${answer.account_class}.`;
    more.textContent = format.shortened(rows.length, answer.matching);
  });

  async function clear(account) {
    const words = await askNote({
      heading: "Clear this flag", text: `Only later refusals can flag ${account} again.`, button: "Clear the flag",
      name: user().name,
    });
    if (!words) return;
    try {
      await send("DELETE", `flags/${encodeURIComponent(account)}`, words);
      complain("");
      say(`The flag of ${account} is cleared.`);
      await refresh();
      // The pressed button no longer exists.
      found.field.focus();
    } catch (error) {
      complain(error.message);
    }
  }

  return {
    name: "flags",
    async begin(main) {
      const loaded = refresh();
      put(main,
        title("Flags", "Accounts that were refused very often. A flag blocks nothing. Review it, then clear the flag."),
        criterion,
        h("div", { class: "bar" }, found.node, h("div", { class: "tabs" }, past), more),
        h("section", { class: "card" }, list.node));
      await loaded;
    },
    onStatus: () => refresh(),
  };
}
