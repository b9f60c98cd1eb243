// The console: one page at a time, told by the gate what happens.

import { put, say } from "./dom.js";
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
const trouble = document.getElementById("trouble");
let page = null;
let status = null;
let busy = false;

function complain(text) {
  trouble.textContent = text;
  trouble.hidden = text === "";
}

/** Shows the page that the address names. */
async function show(focus) {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  const make = PAGES[name] ?? overview;
  page = make(new URLSearchParams(query));
  const mine = page;
  document.querySelectorAll("#pages a").forEach((link) => {
    if (link.dataset.page === page.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  put(main);
  try {
    complain("");
    await page.begin(main);
    if (status && page === mine) await page.told(status);
  } catch (error) {
    complain(error.message);
  }
  document.title = `${main.querySelector("h1")?.textContent ?? "Overview"} · Tollgate`;
  if (focus) main.focus();
}

/** Takes a status in. */
async function told(now) {
  const band = now.band?.name ?? now.role;
  const shown = document.getElementById("band");
  if (shown.dataset.band !== band) {
    shown.dataset.band = band;
    say(`The band is ${band}.`);
  }
  shown.textContent = now.band && band !== "normal" ? `${band}, ${figures.span(now.band.sustained_ms)}` : band;
  const flagged = document.getElementById("flag-count");
  flagged.textContent = figures.count(now.watch.flags);
  flagged.hidden = now.watch.flags === 0;
  document.getElementById("about").textContent = `Tollgate ${now.version}, up for ${figures.span(now.uptime_ms)}`;
  status = now;
  complain(now.watch.kept ? "" : "Flags cannot be written to disk: reports are refused until they can.");
  if (busy || document.hidden || document.querySelector("dialog")) return;
  busy = true;
  try {
    await page?.told(now);
  } catch (error) {
    complain(error.message);
  } finally {
    busy = false;
  }
}

function lost() {
  const shown = document.getElementById("band");
  shown.dataset.band = "lost";
  shown.textContent = "not connected";
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
  const links = [...document.querySelectorAll("#pages a")];
  if (event.key === "/") {
    const field = document.getElementById("search");
    if (field) { event.preventDefault(); field.focus(); }
  } else if (links[Number(event.key) - 1]) {
    location.hash = links[Number(event.key) - 1].hash;
  }
}

theme();
addEventListener("hashchange", () => show(true));
addEventListener("keydown", keys);
document.getElementById("leave").addEventListener("click", server.leave);
try {
  const session = await server.begin();
  document.getElementById("leave").hidden = !session.login;
  await show(false);
  server.listen(told, lost);
} catch (error) {
  complain(error.message);
}
