// The console: one page at a time, told by the gate what happens.

import { complain, put, say } from "./dom.js";
import { episodes } from "./episodes.js";
import { explain } from "./explain.js";
import * as figures from "./figures.js";
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
/** When the gate has told its status, or cannot. */
let hear;
const heard = new Promise((resolve) => { hear = resolve; });

/** Shows the page that the address names. What was pressed while it loads is for this page already. */
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
  const loaded = mine.begin(main, heard.then(() => status));
  document.title = `${main.querySelector("h1")?.textContent ?? "Overview"} · Tollgate`;
  // Before anything is waited for: a person may be in the search field by the time that figures come.
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

/** Takes a status in. */
async function told(now) {
  const band = now.band?.name ?? now.role;
  const sign = document.getElementById("band");
  if (sign.dataset.band !== band) {
    sign.dataset.band = band;
    say(`The band is ${band}.`);
  }
  sign.textContent = now.band && band !== "normal" ? `${band}, ${figures.span(now.band.sustained_ms)}` : band;
  const flagged = document.getElementById("flag-count");
  flagged.textContent = figures.count(now.watch.flags);
  flagged.hidden = now.watch.flags === 0;
  document.getElementById("about").textContent = `Tollgate ${now.version}, up for ${figures.span(now.uptime_ms)}`;
  for (const name of ["spenders", "explain"]) document.querySelector(`#pages [data-page=${name}]`).parentElement.hidden = !now.requests;
  document.getElementById("last-page").textContent = String(links().length);
  status = now;
  hear();
  complain(now.watch.kept ? "" : "Flags cannot be written to disk: reports are refused until they can.", "disk");
  if (busy || document.hidden || document.querySelector("dialog")) return;
  busy = true;
  const mine = page;
  try {
    await mine?.told(now);
    complain("", "figures");
  } catch (error) {
    if (page === mine) complain(error.message, "figures");
  } finally {
    busy = false;
  }
}

/** The pages that there are: a process that serves no requests has none about them. */
function links() {
  return [...document.querySelectorAll("#pages li:not([hidden]) a")];
}

function lost() {
  const sign = document.getElementById("band");
  sign.dataset.band = "lost";
  sign.textContent = "not connected";
  hear();
}

/** Light, dark, or as the system says. */
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
    // At once, not when the browser gets to tell: the next key may be there before.
    show(true);
  }
}

theme();
addEventListener("hashchange", () => show(true));
addEventListener("keydown", keys);
document.getElementById("leave").addEventListener("click", server.leave);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
try {
  // All at once: each of these is a question to the gate.
  server.listen(told, lost);
  const [session] = await Promise.all([server.begin(), show(false)]);
  document.getElementById("leave").hidden = !session.login;
} catch (error) {
  complain(error.message);
}
busy = false;
