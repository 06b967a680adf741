// One backend: its curves and its endpoints.

import { useRef, useState } from "preact/hooks";
import type { Backend, Endpoint } from "../api";
import { HistoryCurves, RangeChoice, Sparkline, useHistory, type Range } from "../curve";
import { Badge, Fill, Loaded, Name, Panel, Share, Table, Tile, type Column, type Tone } from "../parts";
import { usePolling, type Answer } from "../polling";
import { count, duration, plural, span } from "../text";
import type { ViewProps } from "../main";
import { Pager, Rate } from "./backends";

const PAGE = 100;
const TRAIL = 50;

const HEALTH: Record<string, { text: string; tone: Tone; why: string }> = {
  serving: { text: "serving", tone: "good", why: "It gets its share." },
  slow_start: { text: "slow start", tone: "quiet", why: "It is new or back, and its share rises step by step." },
  half_open: { text: "half-open", tone: "warn", why: "Its ejection has ended; one trial request decides." },
  ejected: { text: "ejected", tone: "bad", why: "Too many of its answers failed; it gets no requests for a time." },
  unhealthy: { text: "unhealthy", tone: "bad", why: "It does not pass its active health checks." },
  unreachable: { text: "unreachable", tone: "bad", why: "A connection attempt failed; it is tried in the background." },
};

const LIMITS: Record<string, string> = {
  fixed: "set by the BackendPolicy",
  assigned: "this replica's part of the fixed limit",
  leased: "slots that this replica holds of the fixed limit",
  start: "learned: the first value",
  growing: "learned: rising, latency is as without load",
  saturation: "learned: lowered, latency rose with load",
  probing: "learned: lowered for a moment to measure latency without load",
  shared: "learned for another backend with this endpoint",
  reported: "reported by the endpoint",
  full: "lowered, because the endpoint rejected requests",
};

/** An endpoint with its rates, from two answers in a row. */
export interface EndpointRate extends Endpoint {
  perSecond: number;
  failuresPerSecond: number;
  /** In flight and limit in the last answers. */
  trail: { inFlight: number; limit: number | null }[];
  /** Time at which the page saw it first, in milliseconds; 0: in its first answer. */
  firstSeen: number;
}

/** Computes rates from the counts of answers, which count since the start. */
export function useRates(answer: Answer<{ backends: Backend[] }>): Map<string, EndpointRate[]> {
  const memory = useRef<{ at: number; known: Map<string, EndpointRate[]> }>({ at: 0, known: new Map() });
  const last = memory.current;
  if (answer.data && answer.at !== last.at) {
    const seconds = (answer.at - last.at) / 1000;
    const known = new Map<string, EndpointRate[]>();
    for (const backend of answer.data.backends) {
      const before = new Map(last.known.get(backend.name)?.map((it) => [it.address, it]));
      const isFirst = before.size === 0;
      const endpoints = backend.endpoints.map((it): EndpointRate => {
        const old = before.get(it.address);
        const since = (now: number, then: number | undefined) =>
          isFirst || last.at === 0 ? 0 : Math.max(0, (now - (then ?? 0)) / seconds);
        return {
          ...it,
          perSecond: since(it.requests, old?.requests),
          failuresPerSecond: since(it.failures, old?.failures),
          trail: [...(old?.trail ?? []), { inFlight: it.in_flight, limit: it.limit }].slice(-TRAIL),
          firstSeen: old?.firstSeen ?? (isFirst ? 0 : answer.at),
        };
      });
      known.set(backend.name, endpoints);
    }
    memory.current = { at: answer.at, known };
  }
  return memory.current.known;
}

export function health(endpoint: Endpoint) {
  return HEALTH[endpoint.health] ?? { text: endpoint.health, tone: "warn" as Tone, why: "" };
}

/** Time for which an endpoint counts as new. */
export const NEW_MS = 30_000;

export function BackendView({ overview, parameters }: ViewProps) {
  const name = parameters.get("name") ?? "";
  const [range, setRange] = useState<Range>("10m");
  const [offset, setOffset] = useState(0);
  const answer = usePolling<{ backends: Backend[] }>("backends", 1000, [
    ["name", name],
    ["offset", offset],
    ["limit", PAGE],
  ]);
  const history = useHistory(range, name);
  const rates = useRates(answer);
  return (
    <>
      <p class="lead">
        <a href="#/backends">Backends</a> / <Name text={name} wrap />
      </p>
      <Loaded answer={answer}>
        {({ backends }) => {
          const backend = backends[0];
          if (!backend) return <p class="empty">There is no backend of this name: no route refers to it any more.</p>;
          const row = overview.backends.find((it) => it.name === name);
          const endpoints = rates.get(name) ?? [];
          const total = endpoints.reduce((sum, it) => sum + it.perSecond, 0);
          const queue = backend.queue_max_requests;
          return (
            <>
              {backend.panicking && (
                <p class="notice bad" role="status">
                  Panic mode: too few endpoints are healthy, so health is ignored.
                </p>
              )}
              <div class="tiles">
                <Tile
                  label="Requests"
                  value={`${count(row?.requests_per_second ?? total)}/s`}
                  note={`${backend.algorithm}`}
                />
                <Tile
                  label="Waiting"
                  value={count(backend.queue_length)}
                  note={
                    queue === 0 ? "no queue" : `of ${count(queue)}, for up to ${span(backend.queue_timeout_seconds)}`
                  }
                  tone={backend.queue_length > 0 ? "warn" : undefined}
                />
                <Tile
                  label="Limit per endpoint"
                  value={backend.auto_limit ? "learned" : count(backend.max_in_flight_per_endpoint)}
                  note={backend.auto_limit || backend.max_in_flight_per_endpoint !== null ? "in flight" : "no limit"}
                />
                <Tile label="Slot time" value={duration(backend.service_time_seconds)} note="mean per request" />
              </div>
              <Panel title="Curves" aside={<RangeChoice range={range} choose={setRange} />}>
                <HistoryCurves answer={history} isBackend />
              </Panel>
              <Panel title={plural(backend.endpoint_count, "endpoint")}>
                <Table
                  caption="Endpoints"
                  columns={columns(total)}
                  rows={endpoints}
                  id={(it) => it.address}
                  empty="There is no endpoint: requests are answered with 503."
                />
                <Pager offset={offset} size={PAGE} total={backend.endpoint_count} go={setOffset} />
              </Panel>
            </>
          );
        }}
      </Loaded>
    </>
  );
}

function columns(total: number): Column<EndpointRate>[] {
  return [
    {
      label: "Address",
      cell: (it) => (
        <>
          <Name text={it.address} />
          {it.firstSeen > 0 && performance.now() - it.firstSeen < NEW_MS && <Badge tone="good">new</Badge>}
        </>
      ),
    },
    {
      label: "Health",
      cell: (it) => {
        const { text, tone, why } = health(it);
        return (
          <span title={why}>
            <Badge tone={tone}>{text}</Badge>
            {tone === "bad" || tone === "warn" ? <span class="why">{why}</span> : null}
          </span>
        );
      },
    },
    { label: "Requests/s", numeric: true, cell: (it) => count(it.perSecond) },
    { label: "Share", cell: (it) => <Share value={it.perSecond} total={total} /> },
    { label: "Failures/s", numeric: true, cell: (it) => <Rate value={it.failuresPerSecond} tone="bad" /> },
    {
      label: "In flight / limit",
      cell: (it) => (
        <span title={LIMITS[it.limit_reason ?? ""] ?? "There is no limit."}>
          <Fill value={it.in_flight} max={it.limit} />
          <span class="quiet origin">{it.limit_reason ?? ""}</span>
        </span>
      ),
    },
    {
      label: "Over time",
      hint: "Requests in flight and the limit, since this page was opened",
      cell: (it) => (
        <Sparkline
          values={it.trail.map((point) => point.inFlight)}
          limits={it.trail.map((point) => point.limit)}
          label={`in flight ${it.in_flight}, limit ${it.limit ?? "none"}`}
        />
      ),
    },
    { label: "Latency", numeric: true, cell: (it) => duration(it.latency_seconds), hint: "Learned by PeakEwma alone" },
    { label: "Weight", numeric: true, cell: (it) => count(it.weight) },
  ];
}
