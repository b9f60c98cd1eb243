// The page of settings in force and of changes by operators.

import { card, h, prose, put, search, table, title } from "./dom.js";
import * as format from "./format.js";
import { get, newest } from "./server.js";

export function settings() {
  const tables = h("div", { class: "stack" });
  const reload = h("div");
  const changes = table([
    { name: "Change", of: (row) => row.what, class: "key" },
    { name: "By", of: (row) => (row.let_in ? `${row.by} (${row.let_in})` : row.by) },
    { name: "Time", of: (row) => format.date(row.at), num: true },
  ], "Changes by operators, the latest first", (row) => `${row.at} ${row.what}`);
  const found = search("Search", () => Promise.all([show(), refresh()]));
  const more = h("p", { class: "lead", role: "status" });
  const fetchChanges = () => get("audit", { top: 100, search: found.field.value });
  const refresh = newest(fetchChanges, ({ changes: rows, matching }) => {
    changes.show(rows, found.field.value ? "No change matches." : "No changes yet.");
    more.textContent = format.shortened(rows.length, matching);
  });
  let config = { tables: [] };

  /** The value in force, and the one that a restart would apply. */
  function valueOf(key) {
    // An empty table has the defaults of its own keys.
    const value = h("pre", {}, key.value === "{}" ? "(defaults)" : key.value ?? "–");
    if (key.file_says === undefined) return value;
    return h("div", {}, value, h("p", { class: "hint" }, "after a restart: ", h("code", {}, key.file_says ?? "–")));
  }

  function show() {
    const wanted = found.field.value.toLowerCase();
    const has = (key) => `${key.key} ${key.value} ${key.caption}`.toLowerCase().includes(wanted);
    const cards = config.tables.map((one) => {
      const keys = one.keys.filter((key) => wanted === "" ? key.value !== null : has(key));
      if (keys.length === 0) return null;
      const rows = table([
        { name: "Key", of: (key) => h("span", { title: key.caption }, key.key), class: "key" },
        { name: "Value", of: valueOf, class: "value" },
        { name: "Source", of: (key) => (key.written ? "file" : "default") },
        { name: "Meaning", class: "long", of: (key) => h("span", { class: "hint" }, prose(key.caption)) },
      ], one.table, (key) => key.key);
      rows.show(keys, "");
      const name = one.keys.find((key) => key.key === "name")?.value;
      return card(name ? `${one.table} ${name}` : one.table, prose(one.caption), rows.node);
    });
    const empty = wanted ? "No setting matches." : "No settings file: all values are defaults.";
    put(tables, cards.some(Boolean) ? cards : h("p", { class: "empty" }, empty));
  }

  return {
    name: "settings",
    async begin(main) {
      const requested = Promise.all([get("config"), refresh()]);
      put(main, title("Settings", "The settings in force, their source and their meaning."), reload,
        h("div", { class: "bar" }, found.node), tables,
        card("Changes", "by operators, including earlier runs", more, changes.node));
      const [inForce] = await requested;
      config = inForce;
      const last = config.reload;
      const file = config.file ? h("span", {}, "File: ", h("code", {}, config.file), ". ") : "No settings file. ";
      const reloaded = last ? (last.ok ? `Reloaded ${format.ago(last.at)}.` : "") : "Not reloaded since the start.";
      put(reload, h("p", { class: "lead" }, file, reloaded),
        last && last.needs_new_start.length > 0 && h("p", { class: "lead", role: "status" },
          "A restart is needed to apply: ", h("code", {}, last.needs_new_start.join(", ")),
          ". The values in force are shown below."),
        last && !last.ok && h("div", { class: "wrong", role: "alert" },
          h("p", {}, `The reload ${format.ago(last.at)} failed; the settings are unchanged:`),
          h("pre", {}, last.faults)));
      show();
    },
    onStatus() {},
  };
}
