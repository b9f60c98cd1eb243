// Requests to the admin API.

let session = { role: "viewer", name: "", csrf: null };

/** The session of the user. */
export const user = () => session;

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

/** Sends a GET request with query parameters. */
export async function get(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined);
  const query = given.length ? `?${new URLSearchParams(given)}` : "";
  return answer(await fetch(`/api/v1/${path}${query}`, { headers: { accept: "application/json" } }));
}

/** A request that is repeated. Shows its response once the session is known, unless a later request was sent. */
export function newest(request, show) {
  let latest = 0;
  return async () => {
    const mine = ++latest;
    const [response] = await Promise.all([request(), begin()]);
    if (mine === latest) show(response);
  };
}

/** Sends a change. */
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

/** Loads the session, once. */
export function begin() {
  begun ??= get("session").then((answer) => session = answer, (error) => { begun = null; throw error; });
  return begun;
}

/** Receives status events while the page is open. */
export function listen(onStatus, onDisconnect) {
  const events = new EventSource("/api/v1/events");
  events.addEventListener("status", (event) => onStatus(JSON.parse(event.data)));
  events.addEventListener("error", () => {
    onDisconnect();
    // Browsers do not reconnect after some responses, such as those of a gate that is restarting.
    if (events.readyState === EventSource.CLOSED) setTimeout(() => listen(onStatus, onDisconnect), 2000);
  });
}
