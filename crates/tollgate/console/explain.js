// The page that explains the decision about a request.

import { card, h, put, title } from "./dom.js";
import * as format from "./format.js";
import { queueInWords, refusalsTable, rulesTable } from "./key.js";
import { send } from "./server.js";

/** Parses lines of `name: value`. */
function headersOf(text) {
  const pairs = text.split("\n").map((line) => line.split(/:(.*)/s)).filter((pair) => pair.length > 1);
  return Object.fromEntries(pairs.map(([name, value]) => [name.trim(), value.trim()]));
}

export function explain(parameters) {
  const field = (id, label, attributes) => {
    const input = h("input", { id, spellcheck: "false", autocomplete: "off", ...attributes });
    return { input, node: h("div", { class: "grow" }, h("label", { for: id }, label), input) };
  };
  const given = (name, otherwise) => parameters.get(name) ?? otherwise;
  const client = field("client", "Client", { placeholder: "203.0.113.7", value: given("client", "") });
  const methods = [...new Set([given("method", "GET"), "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])];
  const method = h("select", { id: "method" }, methods.map((one) => h("option", {}, one)));
  const path = field("path", "Path", { value: given("path", "/") });
  const example = "user-agent: curl/8.0\nx-api-key: abc";
  const headers = h("textarea", { id: "headers", spellcheck: "false", placeholder: example }, given("headers", ""));
  const answer = h("div", { class: "stack", "aria-live": "polite" });

  async function submit(event) {
    event.preventDefault();
    try {
      // A link from the page of a key without an address has no client.
      const noAddress = parameters.has("path") && !parameters.has("client") ? null : "";
      const decided = await send("POST", "explain", {
        client: client.input.value.trim() || noAddress, method: method.value, path: path.input.value,
        headers: headersOf(headers.value),
      });
      const rules = rulesTable();
      rules.show(decided.rules, "No rule applies to this request: only the fair queue does.");
      const verdict = h("div", { class: "verdict", id: "verdict" },
        h("span", { class: `pill ${decided.decision}` }, decided.decision), inWords(decided));
      const refusals = refusalsTable();
      refusals.show(decided.refusals ?? [], "No recorded refusal of this client in the last 24 hours.");
      put(answer, h("section", { class: "card" },
        h("header", {}, verdict, decided.site && h("p", {}, `Site: ${decided.site}.`),
          decided.queue && h("p", {}, queueInWords(decided.queue))), rules.node),
        card("Recent refusals", "of this client", refusals.node));
    } catch (error) {
      put(answer, h("p", { class: "wrong" }, error.message));
    }
  }

  return {
    name: "explain",
    async begin(main) {
      put(main, title("Explain", "Would this request be admitted now, and why? Explaining it changes no state."),
        h("form", { class: "card", onsubmit: submit },
          h("div", { class: "bar" },
            client.node, h("div", {}, h("label", { for: "method" }, "Method"), method), path.node),
          h("div", {}, h("label", { for: "headers" }, "Headers, one per line"), headers),
          h("div", { class: "bar" }, h("button", { type: "submit", class: "primary" }, "Explain"))), answer);
    },
    onStatus() {},
  };
}

/** The decision as a sentence. */
function inWords({ decision, reason, rule, queue, hold_ms, retry_after_ms }) {
  const byQueue = queue?.reason === reason ? " by the fair queue" : "";
  const by = rule ? ` by rule ${rule}` : byQueue;
  if (decision === "admit") return `It would be admitted: ${reason}.`;
  if (decision === "hold") return `It would be held for ${format.span(hold_ms)}${by}: ${reason}.`;
  const retry = retry_after_ms ? `It can be retried in ${format.span(retry_after_ms)}.` : "A retry would not help.";
  return `It would be refused${by}: ${reason}. ${retry}`;
}
