// The page of recent refusals by key.

import { h, put, search, table, title } from "./dom.js";
import * as format from "./format.js";
import { get, newest } from "./server.js";
import { keyLink } from "./spenders.js";

export function episodes() {
  const list = table([
    { name: "Key", of: (row) => keyLink(row.class, row.key), class: "key" },
    { name: "Class", of: (row) => row.class },
    { name: "Refused", of: (row) => format.count(row.rejected), num: true },
    { name: "Started", of: (row) => format.date(row.first_at), num: true },
    { name: "Last", of: (row) => row.last, num: true },
  ], "Recent refusals by key, the latest first", (row) => JSON.stringify([row.class, row.key]));
  const found = search("Search", () => refresh());
  const total = h("p", { class: "lead" });

  const refresh = newest(() => get("episodes", { top: 200, search: found.field.value }), (answer) => {
    total.textContent = `${format.count(answer.total)} ${answer.total === 1 ? "key" : "keys"}`;
    list.show(answer.episodes.map((row) => ({ ...row, last_at: undefined, last: format.ago(row.last_at) })),
      found.field.value ? "No key matches." : "No recent refusals.");
  });

  return {
    name: "episodes",
    async begin(main) {
      const loaded = refresh();
      put(main,
        title("Episodes", "Refused keys, with counts and times. An episode ends one hour after its last refusal, " +
          "or after flag_window if that is longer."),
        h("div", { class: "bar" }, found.node, total), h("section", { class: "card" }, list.node));
      await loaded;
    },
    onStatus: () => refresh(),
  };
}
