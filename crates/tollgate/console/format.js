// Formats numbers and times.

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });

/** A date formatter that is created on first use, because creating one is slow. */
function lazyFormat(options) {
  let made;
  return (at) => (made ??= new Intl.DateTimeFormat(undefined, options)).format(at);
}
const time = lazyFormat({ timeStyle: "medium" });
const hour = lazyFormat({ timeStyle: "short" });
const dateAndTime = lazyFormat({ dateStyle: "medium", timeStyle: "medium" });

const isAbsent = (value) => value === null || value === undefined;

/** 1,234 or 1.2M. */
export function count(number) {
  if (isAbsent(number)) return "–";
  return number < 100000 ? whole.format(number) : compact.format(number);
}

/** Per second: 0.25, 1.5, 12, 120K. */
export function rate(number) {
  if (isAbsent(number) || number >= 10) return count(number);
  return number < 1 ? fine.format(number) : tenths.format(number);
}

/** 12 %. */
export function percent(share) {
  if (isAbsent(share)) return "–";
  return `${share < 0.1 && share > 0 ? (share * 100).toFixed(1) : Math.round(share * 100)} %`;
}

/** A duration: 12 ms, 1.5 s, 3 min, 2 h. */
export function span(ms) {
  if (isAbsent(ms)) return "–";
  if (ms < 1) return ms === 0 ? "0" : `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${ms < 10_000 ? tenths.format(ms / 1000) : Math.round(ms / 1000)} s`;
  if (ms < 3_600_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${tenths.format(ms / 3_600_000)} h`;
  return `${Math.round(ms / 86_400_000)} d`;
}

/** Time elapsed, in whole seconds. */
export const since = (ms) => ms < 1000 ? "now" : `${span(Math.floor(ms / 1000) * 1000)} ago`;

/** Time elapsed since a date. */
export const ago = (text) => text ? since(Math.max(0, Date.now() - Date.parse(text))) : "–";

/** A date in local time; without the day if it is today. */
export function date(text) {
  if (!text) return "–";
  const at = new Date(text);
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? time(at) : dateAndTime(at);
}

/** Time of day, with or without seconds. */
export const clock = (ms, seconds) => (seconds ? time(ms) : hour(ms));

/** Note that a list contains only the latest rows; empty if it is complete. */
export function shortened(shown, matching) {
  return matching > shown ? `The latest ${count(shown)} of ${count(matching)}. Search to find the others.` : "";
}
