// Would this request pass, and why?

import { h, put, title } from "./dom.js";
import * as figures from "./figures.js";
import { queueInWords, rulesTable } from "./key.js";
import { send } from "./server.js";

/** Lines of `name: value` as an object. */
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
  const headers = h("textarea", { id: "headers", spellcheck: "false", placeholder: "user-agent: curl/8.0\nx-api-key: abc" }, given("headers", ""));
  const answer = h("div", { "aria-live": "polite" });

  async function ask(event) {
    event.preventDefault();
    try {
      // A link from the page of a caller without an address fills in the rest.
      const noAddress = parameters.has("path") && !parameters.has("client") ? null : "";
      const said = await send("POST", "explain", { client: client.input.value.trim() || noAddress, method: method.value, path: path.input.value, headers: headersOf(headers.value) });
      const rules = rulesTable();
      rules.show(said.rules, "No rule applies to such a request: it takes its turn in the fair queue.");
      put(answer, h("section", { class: "card" }, h("header", {}, h("div", { class: "verdict", id: "verdict" }, h("span", { class: `pill ${said.decision}` }, said.decision), words(said)), said.queue && h("p", {}, queueInWords(said.queue))), rules.node));
    } catch (error) {
      put(answer, h("p", { class: "wrong" }, error.message));
    }
  }

  return {
    name: "explain",
    async begin(main) {
      put(main, title("Explain", "Would such a request pass right now, and why? Asking changes nothing and charges nobody."),
        h("form", { class: "card", onsubmit: ask },
          h("div", { class: "bar" }, client.node, h("div", {}, h("label", { for: "method" }, "Method"), method), path.node),
          h("div", {}, h("label", { for: "headers" }, "Headers, one on each line"), headers),
          h("div", { class: "bar" }, h("button", { type: "submit", class: "primary" }, "Explain"))), answer);
    },
    told() {},
  };
}

function words(said) {
  const byQueue = said.queue?.reason === said.reason ? " by the fair queue" : "";
  const rule = said.rule ? ` by rule ${said.rule}` : byQueue;
  if (said.decision === "admit") return `It would pass: ${said.reason}.`;
  if (said.decision === "hold") return `It would be held for ${figures.span(said.hold_ms)}${rule}: ${said.reason}.`;
  return `It would be refused${rule}: ${said.reason}. ${said.retry_after_ms ? `It may come back in ${figures.span(said.retry_after_ms)}.` : "Waiting would not help."}`;
}
