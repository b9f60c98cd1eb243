// Entry point of the console: shows one page at a time and passes the status events of the gate to it.

import { complain, put, say } from "./dom.js";
import { episodes } from "./episodes.js";
import { explain } from "./explain.js";
import * as format from "./format.js";
import { flags } from "./flags.js";
import { keyPage } from "./key.js";
import { overview } from "./overview.js";
import * as server from "./server.js";
import { settings } from "./settings.js";
import { spenders } from "./spenders.js";

const PAGES = { "": overview, spenders, episodes, flags, explain, settings, key: keyPage };
const main = document.getElementById("main");
let page = null;
let shown = null;
let status = null;
let busy = true;
/** Resolves with the first status, or when the connection fails. */
let resolveFirstStatus;
const firstStatus = new Promise((resolve) => { resolveFirstStatus = resolve; });

/** Shows the page in the location hash. Key presses apply to it even while it loads. */
async function show(focus) {
  if (location.hash === shown) return;
  shown = location.hash;
  const [name, query] = shown.replace(/^#\/?/, "").split("?");
  const mine = (PAGES[name] ?? overview)(new URLSearchParams(query));
  page = mine;
  document.querySelectorAll("#pages a").forEach((link) => {
    if (link.dataset.page === mine.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  put(main);
  main.setAttribute("aria-busy", "true");
  complain("");
  const loaded = mine.begin(main, firstStatus.then(() => status));
  document.title = `${main.querySelector("h1")?.textContent ?? "Overview"} · Tollgate`;
  // Focus before waiting: the user may already be typing in the search field when the data arrive.
  if (focus) main.focus();
  try {
    await loaded;
  } catch (error) {
    if (page === mine) complain(error.message);
  }
  if (page !== mine) return;
  main.removeAttribute("aria-busy");
  performance.mark("shown");
}

/** Handles a status event. */
async function onStatus(now) {
  const band = now.band?.name ?? now.role;
  const sign = document.getElementById("band");
  if (sign.dataset.band !== band) {
    sign.dataset.band = band;
    say(`The band is ${band}.`);
  }
  sign.textContent = now.band && band !== "normal" ? `${band}, ${format.span(now.band.sustained_ms)}` : band;
  const flagged = document.getElementById("flag-count");
  flagged.textContent = format.count(now.watch.flags);
  flagged.hidden = now.watch.flags === 0;
  document.getElementById("about").textContent = `Tollgate ${now.version}, up for ${format.span(now.uptime_ms)}`;
  for (const name of ["spenders", "explain"]) {
    document.querySelector(`#pages [data-page=${name}]`).parentElement.hidden = !now.requests;
  }
  document.getElementById("last-page").textContent = String(links().length);
  status = now;
  resolveFirstStatus();
  complain(now.watch.kept ? "" : "Flags cannot be written to disk. Reports are rejected until this works.", "disk");
  if (busy || document.hidden || document.querySelector("dialog")) return;
  busy = true;
  const mine = page;
  try {
    await mine?.onStatus(now);
    complain("", "status");
  } catch (error) {
    if (page === mine) complain(error.message, "status");
  } finally {
    busy = false;
  }
}

/** Links of the visible pages. A process that serves no requests has no pages about them. */
function links() {
  return [...document.querySelectorAll("#pages li:not([hidden]) a")];
}

function onDisconnect() {
  const sign = document.getElementById("band");
  sign.dataset.band = "lost";
  sign.textContent = "not connected";
  resolveFirstStatus();
}

/** Applies the light or dark theme; the system's preference by default. */
function theme() {
  const kept = localStorage.getItem("theme");
  if (kept) document.documentElement.dataset.theme = kept;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("theme", document.documentElement.dataset.theme);
  });
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  const chosen = links()[Number(event.key) - 1];
  if (event.key === "/") {
    const field = document.getElementById("search");
    if (field) { event.preventDefault(); field.focus(); }
  } else if (chosen) {
    location.hash = chosen.hash;
    // Do not wait for `hashchange`: the next key may be pressed before it.
    show(true);
  }
}

theme();
addEventListener("hashchange", () => show(true));
addEventListener("keydown", keys);
document.getElementById("leave").addEventListener("click", server.leave);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
try {
  // In parallel, because each is a request to the gate.
  server.listen(onStatus, onDisconnect);
  const [session] = await Promise.all([server.begin(), show(false)]);
  document.getElementById("leave").hidden = !session.login;
} catch (error) {
  complain(error.message);
}
busy = false;
