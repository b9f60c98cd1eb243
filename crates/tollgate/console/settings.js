// The settings in force, and who changed what.

import { card, h, prose, put, search, table, title } from "./dom.js";
import * as figures from "./figures.js";
import { get, newest } from "./server.js";

export function settings() {
  const tables = h("div", { class: "stack" });
  const reload = h("div");
  const changes = table([
    { name: "What", of: (row) => row.what, class: "key" },
    { name: "By", of: (row) => row.let_in ? `${row.by} (${row.let_in})` : row.by },
    { name: "When", of: (row) => figures.date(row.at), num: true },
  ], "What operators have changed, the latest first", (row) => `${row.at} ${row.what}`);
  const found = search("Search", () => Promise.all([show(), look()]));
  const more = h("p", { class: "lead", role: "status" });
  const look = newest(() => get("audit", { top: 100, search: found.field.value }), ({ changes: rows, matching }) => {
    changes.show(rows, found.field.value ? "No such change." : "Nobody has changed anything.");
    more.textContent = matching > rows.length ? `The latest ${figures.count(rows.length)} of ${figures.count(matching)}: search for the others.` : "";
  });
  let config = { tables: [] };

  function show() {
    const wanted = found.field.value.toLowerCase();
    const has = (key) => `${key.key} ${key.value} ${key.caption}`.toLowerCase().includes(wanted);
    const cards = config.tables.map((one) => {
      const keys = one.keys.filter((key) => wanted === "" ? key.value !== null : has(key));
      if (keys.length === 0) return null;
      const rows = table([
        { name: "Key", of: (key) => h("span", { title: key.caption }, key.key), class: "key" },
        { name: "Value", of: (key) => key.file_says === undefined ? h("pre", {}, key.value ?? "–")
          : h("div", {}, h("pre", {}, key.value ?? "–"), h("p", { class: "hint" }, "after a new start: ", h("code", {}, key.file_says ?? "–"))) },
        { name: "From", of: (key) => key.written ? "the file" : "default" },
        { name: "Meaning", class: "long", of: (key) => h("span", { class: "hint" }, prose(key.caption)) },
      ], one.table, (key) => key.key);
      rows.show(keys, "");
      return card(one.table, prose(one.caption), rows.node);
    });
    put(tables, cards.some(Boolean) ? cards : h("p", { class: "empty" }, wanted ? "No such setting." : "No file: everything is as it is by default."));
  }

  return {
    name: "settings",
    async begin(main) {
      const asked = Promise.all([get("config"), look()]);
      put(main, title("Settings", "What is in force, where it comes from, and what it means."), reload, h("div", { class: "bar" }, found.node), tables, card("Changes", "by operators, over restarts", more, changes.node));
      const [inForce] = await asked;
      config = inForce;
      const last = config.reload;
      put(reload, h("p", { class: "lead" }, config.file ? h("span", {}, "From ", h("code", {}, config.file), ". ") : "No file. ",
        last ? (last.ok ? `Reloaded ${figures.ago(last.at)}.` : "") : "Not reloaded since the start."),
        last && last.needs_new_start.length > 0 && h("p", { class: "lead", role: "status" }, "Needs a new start to come into force: ",
          h("code", {}, last.needs_new_start.join(", ")), ". What is shown below is what is in force."),
        last && !last.ok && h("div", { class: "wrong", role: "alert" }, h("p", {}, `The reload ${figures.ago(last.at)} was refused; the old settings stay in force:`), h("pre", {}, last.faults)));
      show();
    },
    told() {},
  };
}
