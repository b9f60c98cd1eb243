// Figures as people read them.

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });

/** A way to write times that is made once, when it is needed: that takes longer than everything that is written with it. */
function format(options) {
  let made;
  return (at) => (made ??= new Intl.DateTimeFormat(undefined, options)).format(at);
}
const time = format({ timeStyle: "medium" });
const hour = format({ timeStyle: "short" });
const dateAndTime = format({ dateStyle: "medium", timeStyle: "medium" });

/** 1,234 or 1.2M. */
export const count = (number) => number === null || number === undefined ? "–" : number < 100000 ? whole.format(number) : compact.format(number);

/** Per second: 0.25, 1.5, 12, 120K. */
export const rate = (number) => number === null || number === undefined ? "–" : number < 1 ? fine.format(number) : number < 10 ? tenths.format(number) : count(number);

/** 12 %. */
export const percent = (share) => share === null || share === undefined ? "–" : `${share < 0.1 && share > 0 ? (share * 100).toFixed(1) : Math.round(share * 100)} %`;

/** A length of time: 12 ms, 1.5 s, 3 min, 2 h. */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return ms === 0 ? "0" : `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${ms < 10_000 ? tenths.format(ms / 1000) : Math.round(ms / 1000)} s`;
  if (ms < 3_600_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${tenths.format(ms / 3_600_000)} h`;
  return `${Math.round(ms / 86_400_000)} d`;
}

/** How long ago, to the second. */
export const since = (ms) => ms < 1000 ? "now" : `${span(Math.floor(ms / 1000) * 1000)} ago`;

/** How long ago a date was. */
export const ago = (text) => text ? since(Math.max(0, Date.now() - Date.parse(text))) : "–";

/** A date, in the reader's time; of today, the time alone. */
export function date(text) {
  if (!text) return "–";
  const at = new Date(text);
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? time(at) : dateAndTime(at);
}

/** The time of day; with seconds if little time is shown. */
export const clock = (ms, seconds) => (seconds ? time(ms) : hour(ms));
