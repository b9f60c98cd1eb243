// Who is being refused, lately.

import { h, put, search, table, title } from "./dom.js";
import * as figures from "./figures.js";
import { get, newest } from "./server.js";
import { keyLink } from "./spenders.js";

export function episodes() {
  const list = table([
    { name: "Key", of: (row) => keyLink(row.class, row.key), class: "key" },
    { name: "Class", of: (row) => row.class },
    { name: "Refused", of: (row) => figures.count(row.rejected), num: true },
    { name: "Began", of: (row) => figures.date(row.first_at), num: true },
    { name: "Last", of: (row) => row.last, num: true },
  ], "Recent refusals by key, the latest first", (row) => JSON.stringify([row.class, row.key]));
  const found = search("Search", () => look());
  const total = h("p", { class: "lead" });

  const look = newest(() => get("episodes", { top: 200, search: found.field.value }), (answer) => {
    total.textContent = `${figures.count(answer.total)} ${answer.total === 1 ? "caller" : "callers"} in the last hour`;
    list.show(answer.episodes.map((row) => ({ ...row, last_at: undefined, last: figures.ago(row.last_at) })),
      found.field.value ? "Nobody by that name." : "Nobody was refused in the last hour.");
  });

  return {
    name: "episodes",
    async begin(main) {
      const looked = look();
      put(main, title("Episodes", "Who was refused lately, how often and since when. A caller leaves this list an hour after its last refusal."),
        h("div", { class: "bar" }, found.node, total), h("section", { class: "card" }, list.node));
      await looked;
    },
    told: () => look(),
  };
}
