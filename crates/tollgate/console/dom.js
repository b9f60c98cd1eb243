// Creates DOM elements. Values are always inserted as text, so that a key can never be interpreted as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...present(children));
  return element;
}

/** Flattens children and drops absent ones. */
function present(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Creates an HTML element. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Creates an SVG element. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Replaces the children of an element. */
export function put(element, ...children) {
  element.replaceChildren(...present(children));
}

/** Heading of a page with its purpose. */
export function title(text, lead) {
  return h("div", {}, h("h1", {}, text), lead && h("p", { class: "lead" }, lead));
}

/** Text in which backquoted parts become code elements. */
export function prose(text) {
  return text.split("`").map((part, index) => index % 2 ? h("code", {}, part) : part);
}

/** A card with a heading. */
export function card(heading, lead, ...children) {
  const header = h("header", {}, h("h2", {}, heading), lead && h("p", { class: "lead" }, lead));
  return h("section", { class: "card" }, header, ...children);
}

/**
 * A table that becomes a list of cards on a small screen. A column is { name, of(row), class, num }; `id` names a row.
 * A row keeps its element when it moves, and only changed cells are replaced, so that focus and mouse presses stay.
 */
export function table(columns, caption, id) {
  const body = h("tbody");
  const head = columns.map((column) => h("th", { scope: "col", class: column.num ? "num" : column.class === "actions" && "actions" }, column.name));
  // Where the table is wider than its card it scrolls, with the keyboard too.
  const node = h("div", { class: "scroll", role: "group", "aria-label": caption, tabindex: "0" },
    h("table", { class: "stacks" },
      h("caption", { class: "visually-hidden" }, caption), h("thead", {}, h("tr", {}, head)), body));
  let shown = new Map();
  const classOf = (column) => [column.class, column.num && "num"].filter(Boolean).join(" ");
  const cells = (row) => columns.map((column) =>
    h("td", { class: classOf(column), "data-label": column.name }, column.of(row)));

  /** The element of a row; changed cells are replaced. */
  function line(row, before) {
    const text = JSON.stringify(row);
    if (!before) return { text, node: h("tr", {}, cells(row)) };
    if (before.text === text) return before;
    cells(row).forEach((cell, index) => {
      const old = before.node.cells[index];
      if (!old.isEqualNode(cell)) old.replaceWith(cell);
    });
    return { text, node: before.node };
  }

  return {
    node,
    show(rows, empty) {
      const focused = body.contains(document.activeElement) ? document.activeElement : null;
      const home = focused?.closest("tr");
      const index = focused ? [...home.querySelectorAll("a,button")].indexOf(focused) : -1;
      const lines = new Map();
      for (const row of rows) {
        let name = id(row);
        while (lines.has(name)) name += "\n";
        lines.set(name, line(row, shown.get(name)));
      }
      shown = lines;
      const nodes = lines.size
        ? [...lines.values()].map((one) => one.node)
        : [h("tr", {}, h("td", { class: "empty", colspan: columns.length }, empty))];
      const kept = new Set(nodes);
      [...body.rows].forEach((one) => { if (!kept.has(one)) one.remove(); });
      // Do not move elements that are already in place, because a moved element loses the focus.
      nodes.forEach((one, at) => { if (body.rows[at] !== one) body.insertBefore(one, body.rows[at] ?? null); });
      if (focused && document.activeElement !== focused) {
        home.querySelectorAll("a,button")[index]?.focus({ preventScroll: true });
      }
    },
  };
}

/** A search field. Calls `changed` a moment after the last key press. */
export function search(label, changed) {
  let timer;
  const refresh = () => Promise.resolve(changed())
    .then(() => complain("", "search"), (error) => complain(error.message, "search"));
  const field = h("input", {
    id: "search", type: "search", autocomplete: "off", spellcheck: "false", placeholder: "any part of a name",
    oninput: () => { clearTimeout(timer); timer = setTimeout(refresh, 150); },
  });
  return { field, node: h("div", { class: "grow" }, h("label", { for: "search" }, label), field) };
}

/** Asks for a name and a note before a change. Resolves to both, or to null if cancelled. */
export function askNote({ heading, text, button, name, extra }) {
  return new Promise((resolve) => {
    const who = h("input", { id: "note-name", value: name, maxlength: 60, autocomplete: "nickname", required: true });
    const note = h("textarea", { id: "note-text", maxlength: 1000, required: true });
    const dialog = h("dialog", { "aria-labelledby": "note-heading" },
      h("form", { method: "dialog", onsubmit: () => dialog.close("yes") },
        h("h1", { id: "note-heading" }, heading), h("p", { class: "lead" }, text), extra,
        h("label", { for: "note-name" }, "Your name"), who,
        h("label", { for: "note-text" }, "Note"), note,
        h("div", { class: "buttons" },
          h("button", { type: "button", onclick: () => dialog.close("") }, "Cancel"),
          h("button", { type: "submit", class: "primary" }, button))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? { name: who.value.trim(), note: note.value.trim() } : null);
    });
    document.body.append(dialog);
    dialog.showModal();
    note.focus();
  });
}

const troubles = new Map();

/** Shows an error until the same source reports another text; "" removes it. */
export function complain(text, source = "page") {
  troubles.set(source, text);
  const shown = document.getElementById("trouble");
  const all = [...troubles.values()].filter(Boolean).join(" ");
  if (shown.textContent !== all) shown.textContent = all;
  shown.hidden = all === "";
}

/** Announces a text to screen readers. */
export function say(text) {
  document.getElementById("said").textContent = text;
}
