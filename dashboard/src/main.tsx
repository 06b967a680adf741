// The frame of the dashboard: navigation, the state of the connection, and the view that the address names.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Overview } from "./api";
import { Name, type Tone } from "./parts";
import { usePolling } from "./polling";
import { span } from "./text";
import { BackendView } from "./views/backend";
import { BackendsView } from "./views/backends";
import { CertificatesView } from "./views/certificates";
import { ExplainView } from "./views/explain";
import { FlowView } from "./views/flow";
import { LayerFourView } from "./views/layer4";
import { OverviewView } from "./views/overview";
import { ProblemsView } from "./views/problems";
import { QueueView } from "./views/queue";
import { ReplicasView } from "./views/replicas";

export interface ViewProps {
  overview: Overview;
  /** Time of the overview, in milliseconds of the page. */
  at: number;
  parameters: URLSearchParams;
}

interface ViewEntry {
  id: string;
  title: string;
  view: (props: ViewProps) => preact.JSX.Element;
  mark?: (overview: Overview) => { text: string; tone: Tone } | null;
}

const VIEWS: ViewEntry[] = [
  { id: "overview", title: "Overview", view: OverviewView },
  { id: "flow", title: "Flow", view: FlowView },
  {
    id: "backends",
    title: "Backends",
    view: BackendsView,
    mark: ({ totals }) => mark(totals.troubled_endpoints, "warn"),
  },
  { id: "queue", title: "Queue and 429s", view: QueueView, mark: ({ totals }) => mark(totals.waiting, "quiet") },
  { id: "replicas", title: "Replicas and leases", view: ReplicasView },
  { id: "layer4", title: "L4 and transparent", view: LayerFourView },
  {
    id: "certificates",
    title: "Certificates",
    view: CertificatesView,
    mark: ({ process }) => {
      const left = (process.first_certificate_expiry ?? Infinity) - Date.now() / 1000;
      return left < 14 * 86400 ? { text: left < 0 ? "expired" : span(left), tone: left < 86400 ? "bad" : "warn" } : null;
    },
  },
  {
    id: "problems",
    title: "Problems",
    view: ProblemsView,
    mark: ({ process }) => mark(process.problems + process.unbound_listeners, "bad"),
  },
  { id: "explain", title: "Explain", view: ExplainView },
];

/** The page of one backend, which the navigation does not list. */
const BACKEND: ViewEntry = { id: "backend", title: "Backend", view: BackendView };

function mark(number: number, tone: Tone) {
  return number > 0 ? { text: number > 999 ? "999+" : String(number), tone } : null;
}

interface Place {
  entry: ViewEntry;
  parameters: URLSearchParams;
}

function place(): Place {
  const [id = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const entry = [...VIEWS, BACKEND].find((it) => it.id === id) ?? VIEWS[0]!;
  return { entry, parameters: new URLSearchParams(query) };
}

const PHASES: Record<Overview["process"]["phase"], { text: string; tone: Tone }> = {
  starting: { text: "starting", tone: "warn" },
  ready: { text: "ready", tone: "good" },
  leaving: { text: "leaving", tone: "warn" },
  draining: { text: "draining", tone: "warn" },
};

function Frame() {
  const [{ entry, parameters }, setPlace] = useState(place);
  const answer = usePolling<Overview>("overview", 1000);
  const main = useRef<HTMLElement>(null);
  const overview = answer.data;
  useEffect(() => {
    const onHash = () => {
      setPlace(place());
      window.scrollTo(0, 0);
      main.current?.focus();
    };
    window.addEventListener("hashchange", onHash);
    return () => window.removeEventListener("hashchange", onHash);
  }, []);
  useEffect(() => {
    document.title = `${entry.title} · Sheave`;
  }, [entry]);
  const isLost = answer.failures > 0 || answer.error !== null;
  const active = entry === BACKEND ? "backends" : entry.id;
  const { view: View } = entry;
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to the content
      </a>
      <header class="bar">
        <a class="brand" href="#/overview">
          <svg viewBox="0 0 32 32" aria-hidden="true">
            <circle cx="16" cy="16" r="11.5" />
            <circle cx="16" cy="16" r="3" class="hub" />
            <path d="M16 4.5v8.5M16 19v8.5" />
          </svg>
          Sheave
        </a>
        {overview && <ProcessLine process={overview.process} isLost={isLost} />}
      </header>
      <nav class="side" aria-label="Views">
        <ul>
          {VIEWS.map((it) => {
            const note = overview && it.mark?.(overview);
            return (
              <li key={it.id}>
                <a href={`#/${it.id}`} aria-current={it.id === active ? "page" : undefined}>
                  {it.title}
                  {note && <span class={`count ${note.tone}`}>{note.text}</span>}
                </a>
              </li>
            );
          })}
        </ul>
      </nav>
      <main id="main" ref={main} tabIndex={-1} class={isLost ? "stale" : ""}>
        {isLost && (
          <div class="lost" role="alert">
            {answer.error ? (
              <>
                Sheave rejects the question: <Name text={answer.error.message} wrap />
              </>
            ) : (
              <>Sheave does not answer; trying again. {overview && "What is shown is the last that it said."}</>
            )}
          </div>
        )}
        <h1>{entry.title}</h1>
        {overview ? (
          <View overview={overview} at={answer.at} parameters={parameters} />
        ) : (
          !isLost && (
            <p class="empty" aria-busy="true">
              Loading…
            </p>
          )
        )}
      </main>
    </div>
  );
}

function ProcessLine({ process, isLost }: { process: Overview["process"]; isLost: boolean }) {
  const phase = isLost ? { text: "no answer", tone: "bad" as Tone } : PHASES[process.phase];
  return (
    <div class="process">
      <span class={`phase ${phase.tone}`}>{phase.text}</span>
      {process.node && (
        <span>
          on <Name text={process.node} />
        </span>
      )}
      <span class="wide">up {span(Math.max(0, Date.now() / 1000 - process.started_seconds))}</span>
      <span class="wide">configuration {process.generation}</span>
      <span class="wide">v{process.version}</span>
    </div>
  );
}

render(<Frame />, document.getElementById("app")!);
