// Elements, made of values. Text is only ever set as text: what a client calls itself is never read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An element of a page. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An element of a drawing. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Puts children in the place of what an element has. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** A heading with what the page is for. */
export function title(text, lead) {
  return h("div", {}, h("h1", {}, text), lead && h("p", { class: "lead" }, lead));
}

/** Words in which `code` is marked as the settings' captions mark it. */
export function prose(text) {
  return text.split("`").map((part, place) => place % 2 ? h("code", {}, part) : part);
}

/** A card with a heading. */
export function card(heading, lead, ...children) {
  return h("section", { class: "card" }, h("header", {}, h("h2", {}, heading), lead && h("p", { class: "lead" }, lead)), ...children);
}

/**
 * A table that becomes a list of cards on a small screen. A column is { name, of(row), class, num }; `id` tells rows apart.
 * A row stays the same element wherever it moves, and only cells that changed are written again: whoever has the focus on a row, or
 * the mouse down on it, still means that row when the list below changes.
 */
export function table(columns, caption, id) {
  const body = h("tbody");
  const head = columns.map((column) => h("th", { scope: "col", class: column.num && "num" }, column.name));
  const node = h("div", { class: "scroll" },
    h("table", { class: "stacks" }, h("caption", { class: "visually-hidden" }, caption), h("thead", {}, h("tr", {}, head)), body));
  let shown = new Map();
  const cells = (row) => columns.map((column) =>
    h("td", { class: [column.class, column.num && "num"].filter(Boolean).join(" "), "data-label": column.name }, column.of(row)));

  /** The line of a row, written again where it changed. */
  function line(row, before) {
    const text = JSON.stringify(row);
    if (!before) return { text, node: h("tr", {}, cells(row)) };
    if (before.text === text) return before;
    cells(row).forEach((cell, place) => {
      const old = before.node.cells[place];
      if (!old.isEqualNode(cell)) old.replaceWith(cell);
    });
    return { text, node: before.node };
  }

  return {
    node,
    show(rows, empty) {
      const focused = body.contains(document.activeElement) ? document.activeElement : null;
      const [home, place] = focused ? [focused.closest("tr"), [...focused.closest("tr").querySelectorAll("a,button")].indexOf(focused)] : [null, -1];
      const lines = new Map();
      for (const row of rows) {
        let name = id(row);
        while (lines.has(name)) name += "\n";
        lines.set(name, line(row, shown.get(name)));
      }
      shown = lines;
      const nodes = lines.size ? [...lines.values()].map((one) => one.node) : [h("tr", {}, h("td", { class: "empty", colspan: columns.length }, empty))];
      const kept = new Set(nodes);
      [...body.rows].forEach((one) => { if (!kept.has(one)) one.remove(); });
      // What is in its place is not touched: an element that is moved loses the focus.
      nodes.forEach((one, at) => { if (body.rows[at] !== one) body.insertBefore(one, body.rows[at] ?? null); });
      if (focused && document.activeElement !== focused) home.querySelectorAll("a,button")[place]?.focus({ preventScroll: true });
    },
  };
}

/** A field to search with. Calls `changed` a moment after the last key. */
export function search(label, changed) {
  let timer;
  const look = () => Promise.resolve(changed()).then(() => complain("", "search"), (error) => complain(error.message, "search"));
  const field = h("input", { id: "search", type: "search", autocomplete: "off", spellcheck: "false", placeholder: "any part of a name",
    oninput: () => { clearTimeout(timer); timer = setTimeout(look, 150); } });
  return { field, node: h("div", { class: "grow" }, h("label", { for: "search" }, label), field) };
}

/** Asks for a note before something is changed. Resolves to the words, or to null. */
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

/** Says what is wrong, until the same place says something else; "" is that nothing is. */
export function complain(text, place = "page") {
  troubles.set(place, text);
  const shown = document.getElementById("trouble");
  const all = [...troubles.values()].filter(Boolean).join(" ");
  if (shown.textContent !== all) shown.textContent = all;
  shown.hidden = all === "";
}

/** Tells those who listen instead of look. */
export function say(text) {
  document.getElementById("said").textContent = text;
}
