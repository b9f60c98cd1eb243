// Accounts that are marked for a person to look at.

import { askNote, complain, h, put, say, search, table, title } from "./dom.js";
import * as figures from "./figures.js";
import { caller, get, newest, send } from "./server.js";
import { keyLink } from "./spenders.js";

export function flags() {
  let history = false;
  const list = table([
    { name: "Account", of: (row) => keyLink(row.class, row.account), class: "key" },
    { name: "Flagged", of: (row) => figures.date(row.flagged_at) },
    { name: "Refused", of: (row) => figures.count(row.rejected), num: true },
    { name: "Cleared", of: (row) => row.cleared_at ? `${figures.date(row.cleared_at)} by ${row.cleared_by}` : "–" },
    { name: "Note", of: (row) => row.note ?? "–" },
    { name: "Action", class: "actions", of: (row) => row.cleared_at || caller().role !== "operator" ? "" :
      h("button", { type: "button", "aria-label": `Clear the flag of ${row.account}`, onclick: () => clear(row.account) }, "Clear…") },
  ], "Flagged accounts, the latest first", (row) => `${row.account} ${row.flagged_at}`);
  const found = search("Search", () => look());
  const past = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
    history = !history;
    past.setAttribute("aria-pressed", String(history));
    look();
  } }, "Show cleared ones");
  const more = h("p", { class: "lead", role: "status" });
  const look = newest(() => get("flags", { history: history ? 1 : "", search: found.field.value, top: 500 }), (answer) => {
    list.show(answer.flags.map((row) => ({ ...row, class: answer.account_class })), found.field.value ? "No account by that name." : "No account is flagged.");
    more.textContent = answer.matching > answer.flags.length ? `The latest ${figures.count(answer.flags.length)} of ${figures.count(answer.matching)}: search for the others.` : "";
  });

  async function clear(account) {
    const words = await askNote({
      heading: "Clear this flag", text: `${account} is flagged again only for refusals from now on.`, button: "Clear the flag", name: caller().name,
    });
    if (!words) return;
    try {
      await send("DELETE", `flags/${encodeURIComponent(account)}`, words);
      complain("");
      say(`The flag of ${account} is cleared.`);
      await look();
      // The button that was pressed is gone.
      found.field.focus();
    } catch (error) {
      complain(error.message);
    }
  }

  return {
    name: "flags",
    async begin(main) {
      const looked = look();
      put(main, title("Flags", "Accounts that were refused very often. A flag bans nobody: it asks a person to look, and a person clears it."),
        h("div", { class: "bar" }, found.node, h("div", { class: "tabs" }, past), more), h("section", { class: "card" }, list.node));
      await looked;
    },
    told: () => look(),
  };
}
