// What the gate says, and what it is told.

let session = { role: "viewer", name: "", csrf: null };

/** Who is logged in. */
export const caller = () => session;

async function answer(response) {
  if (response.status === 401) {
    location.assign("/login");
    throw new Error("logged out");
  }
  const text = await response.text();
  const body = text === "" ? null : JSON.parse(text);
  if (!response.ok) throw new Error(body?.detail ?? response.statusText);
  return body;
}

/** Asks, with parameters. */
export async function get(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined));
  return answer(await fetch(`/api/v1/${path}${query.size ? `?${query}` : ""}`, { headers: { accept: "application/json" } }));
}

/** A question that is asked again and again, and shown, once it is known who asks: answers to earlier ones that come late are not. */
export function newest(ask, show) {
  let asked = 0;
  return async () => {
    const mine = ++asked;
    const [answer] = await Promise.all([ask(), begin()]);
    if (mine === asked) show(answer);
  };
}

/** Changes something. */
export async function send(method, path, body) {
  await begin();
  const headers = { "content-type": "application/json", "x-tollgate-csrf": session.csrf ?? "" };
  return answer(await fetch(`/api/v1/${path}`, { method, headers, body: JSON.stringify(body) }));
}

/** Ends the session. */
export async function leave() {
  await fetch("/logout", { method: "POST", headers: { "x-tollgate-csrf": session.csrf ?? "" }, redirect: "manual" });
  location.assign("/login");
}

let begun = null;

/** Finds out who we are, once. */
export function begin() {
  begun ??= get("session").then((answer) => session = answer, (error) => { begun = null; throw error; });
  return begun;
}

/** Listens for the status, for as long as the page is open. */
export function listen(told, lost) {
  const events = new EventSource("/api/v1/events");
  events.addEventListener("status", (event) => told(JSON.parse(event.data)));
  events.addEventListener("error", () => {
    lost();
    // A browser gives up on some answers; a gate that was started anew is worth another try.
    if (events.readyState === EventSource.CLOSED) setTimeout(() => listen(told, lost), 2000);
  });
}
