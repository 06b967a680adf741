// How a request would be routed, and why, by the configuration in force.

import { useEffect, useState } from "preact/hooks";
import { ask, RefusedQuestion, type Explanation, type Parameters } from "../api";
import { Name, Panel } from "../parts";
import type { ViewProps } from "../main";

const METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

interface Result {
  lines: Explanation["lines"];
  error: string | null;
}

export function ExplainView({ parameters }: ViewProps) {
  const [method, setMethod] = useState(parameters.get("method") ?? "GET");
  const [url, setUrl] = useState(parameters.get("url") ?? "");
  const [headers, setHeaders] = useState(parameters.getAll("header").join("\n"));
  const [result, setResult] = useState<Result | null>(null);
  const [isBusy, setBusy] = useState(false);

  const explain = async () => {
    const fields = headers.split("\n").filter((it) => it.trim() !== "");
    const query: Parameters = [["method", method], ["url", url.trim()]];
    for (const field of fields) query.push(["header", field]);
    setBusy(true);
    try {
      const { lines } = await ask<Explanation>("explain", query);
      setResult({ lines, error: null });
    } catch (error) {
      const reason = error instanceof RefusedQuestion ? error.message : "Sheave does not answer; try again.";
      setResult({ lines: [], error: reason });
    }
    setBusy(false);
  };
  useEffect(() => {
    if (url) void explain();
  }, []);

  return (
    <>
      <Panel title="A request">
        <form
          class="form"
          onSubmit={(event) => {
            event.preventDefault();
            void explain();
          }}
        >
          <label>
            Method
            <select value={method} onChange={(event) => setMethod(event.currentTarget.value)}>
              {METHODS.map((it) => (
                <option key={it}>{it}</option>
              ))}
            </select>
          </label>
          <label class="grow">
            URL
            <input
              type="text"
              inputMode="url"
              required
              value={url}
              placeholder="http://shop.example/cart"
              autoComplete="off"
              spellcheck={false}
              onInput={(event) => setUrl(event.currentTarget.value)}
            />
          </label>
          <label class="row">
            Header fields, one a line
            <textarea
              rows={2}
              value={headers}
              placeholder={"Host: shop.example\nX-Canary: yes"}
              spellcheck={false}
              onInput={(event) => setHeaders(event.currentTarget.value)}
            />
          </label>
          <button type="submit" class="primary" disabled={isBusy}>
            Explain
          </button>
          <span class="quiet">Nothing is sent: the port of the URL selects the listener.</span>
        </form>
      </Panel>
      <div aria-live="polite">
        {result && (
          <Panel title="Explanation">
            {result.error !== null ? (
              <p class="empty bad">
                <Name text={result.error} wrap />
              </p>
            ) : (
              <dl class="explanation">
                {result.lines.map((line, index) => (
                  <div key={index} class={line.label ? "line-head" : ""}>
                    <dt>{line.label}</dt>
                    <dd>
                      <Name text={line.text} wrap />
                    </dd>
                  </div>
                ))}
              </dl>
            )}
          </Panel>
        )}
      </div>
    </>
  );
}
