// Figures as people read them.

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });

/** 1,234 or 1.2M. */
export const count = (number) => number === null || number === undefined ? "–" : number < 100000 ? whole.format(number) : compact.format(number);

/** Per second: 0.25, 12, 1.2K. */
export const rate = (number) => number === null || number === undefined ? "–" : number < 10 ? fine.format(number) : count(number);

/** 12 %. */
export const percent = (share) => share === null || share === undefined ? "–" : `${share < 0.1 && share > 0 ? (share * 100).toFixed(1) : Math.round(share * 100)} %`;

/** A length of time: 12 ms, 1.5 s, 3 min, 2 h. */
export function span(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1) return ms === 0 ? "0 ms" : `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < 3_600_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${(ms / 3_600_000).toFixed(1)} h`;
  return `${Math.round(ms / 86_400_000)} d`;
}

/** How long ago. */
export const ago = (text) => text ? `${span(Math.max(0, Date.now() - Date.parse(text)))} ago` : "–";

/** A date, in the reader's time. */
export const date = (text) => text ? new Date(text).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" }) : "–";

/** The time of day. */
export const clock = (ms) => new Date(ms).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
