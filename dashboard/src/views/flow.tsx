// The way of requests as a picture: clients, listeners, rules, backends, endpoints; widths are requests per second.

import { useMemo, useRef, useState, useEffect } from "preact/hooks";
import type { Backend, Overview } from "../api";
import { backendLink, Panel } from "../parts";
import { usePolling } from "../polling";
import { count, percent, visible } from "../text";
import type { ViewProps } from "../main";
import { health, NEW_MS, useRates, type EndpointRate } from "./backend";

const MAX_BACKENDS = 6;
const MAX_ROUTES = 10;
const MAX_ENDPOINTS = 8;
const ASKED_ENDPOINTS = 200;

const NODE_GAP = 14;
const MIN_NODE = 34;
const BAR = 8;
/** Height that all flow together has. */
const FLOW_HEIGHT = 220;

interface FlowNode {
  id: string;
  column: number;
  label: string;
  note: string;
  flow: number;
  tone?: "bad" | "warn" | "new";
  href?: string;
}

interface FlowLink {
  from: string;
  to: string;
  flow: number;
  /** True if the part is not counted but computed from weights, or from the open connections of listeners. */
  isEstimate?: boolean;
}

interface Placed extends FlowNode {
  x: number;
  y: number;
  height: number;
}

export function FlowView({ overview, at }: ViewProps) {
  const names = useChoice(overview);
  const parameters = useMemo(
    () => [...names.map((it): [string, string] => ["name", it]), ["limit", ASKED_ENDPOINTS] as [string, number]],
    [names.join("\n")],
  );
  const answer = usePolling<{ backends: Backend[] }>(names.length > 0 ? "backends" : null, 1000, parameters);
  const rates = useRates(answer);
  const { nodes, links } = picture(overview, names, answer.data?.backends ?? [], rates);
  const isEmpty = overview.backend_count === 0;
  const hidden = overview.backend_count - names.length;
  return (
    <Panel
      title="Requests per second, from clients to endpoints"
      aside={hidden > 0 && <a href="#/backends">{count(hidden)} quieter backends are left out</a>}
    >
      {isEmpty ? (
        <p class="empty">Nothing flows yet: no route refers to a Service.</p>
      ) : (
        <>
          <Picture nodes={nodes} links={links} at={at} />
          <ul class="flow-key">
            <li>
              <svg viewBox="0 0 34 12" aria-hidden="true">
                <path class="link" d="M0 6h34" stroke-width="9" />
              </svg>
              counted
            </li>
            <li>
              <svg viewBox="0 0 34 12" aria-hidden="true">
                <path class="link estimate" d="M0 6h34" stroke-width="9" />
              </svg>
              divided by weights or open connections
            </li>
            <li>
              <svg class="node-key" viewBox="0 0 8 12" aria-hidden="true">
                <rect class="node-bar new" width="8" height="12" />
              </svg>
              endpoint that joined in the last 30 s
            </li>
            <li>
              <svg class="node-key" viewBox="0 0 8 12" aria-hidden="true">
                <rect class="node-bar bad" width="8" height="12" />
              </svg>
              endpoint that does not serve
            </li>
          </ul>
        </>
      )}
    </Panel>
  );
}

/** Returns the backends to show. It changes only if others become much busier, so that the picture keeps still. */
function useChoice(overview: Overview): string[] {
  const choice = useRef<{ names: string[]; since: number }>({ names: [], since: 0 });
  const busiest = overview.backends.slice(0, MAX_BACKENDS).map((it) => it.name);
  const known = new Set(overview.backends.map((it) => it.name));
  const isGone = choice.current.names.some((it) => !known.has(it));
  const isOld = performance.now() - choice.current.since > 10_000;
  const hasRoom = choice.current.names.length < busiest.length;
  if (isGone || isOld || hasRoom) {
    const names = [...busiest].sort();
    choice.current = { names, since: performance.now() };
  }
  return choice.current.names;
}

/** Returns the last part of a name, which tells the most: `http` of `gateway/demo/http`. */
function brief(name: string, length: number): string {
  const text = visible(name);
  return text.length <= length ? text : `…${text.slice(1 - length)}`;
}

function picture(
  overview: Overview,
  names: string[],
  backends: Backend[],
  rates: Map<string, EndpointRate[]>,
): { nodes: FlowNode[]; links: FlowLink[] } {
  const nodes: FlowNode[] = [];
  const links: FlowLink[] = [];
  const shown = new Set(names);
  const routes = overview.routes
    .filter((it) => it.backends.some(([name]) => shown.has(name)))
    .slice(0, MAX_ROUTES)
    .sort((one, other) => (one.name < other.name ? -1 : 1));
  const listeners = overview.listeners.filter((it) => it.routes.some((name) => routes.some((route) => route.name === name)));
  const intoListener = new Map<string, number>();

  for (const route of routes) {
    const from = listeners.filter((it) => it.routes.includes(route.name));
    const open = from.reduce((sum, it) => sum + it.connections, 0);
    for (const listener of from) {
      const share = open > 0 ? listener.connections / open : 1 / from.length;
      const flow = route.requests_per_second * share;
      const id = `listener ${listener.name} ${listener.address}`;
      intoListener.set(id, (intoListener.get(id) ?? 0) + flow);
      links.push({ from: id, to: `route ${route.name}`, flow, isEstimate: from.length > 1 });
    }
    nodes.push({
      id: `route ${route.name}`,
      column: 2,
      label: brief(route.name, 26),
      note:
        route.errors_per_second > 0
          ? `${count(route.requests_per_second)}/s, ${count(route.errors_per_second)}/s errors`
          : `${count(route.requests_per_second)}/s`,
      flow: route.requests_per_second,
      ...(route.errors_per_second > 0 ? { tone: "bad" as const } : {}),
    });
    for (const [backend, share] of route.backends) {
      if (!shown.has(backend)) continue;
      const flow = (route.requests_per_second * share) / 100;
      links.push({ from: `route ${route.name}`, to: `backend ${backend}`, flow, isEstimate: route.backends.length > 1 });
    }
  }
  let total = 0;
  for (const listener of listeners) {
    const id = `listener ${listener.name} ${listener.address}`;
    const flow = intoListener.get(id) ?? 0;
    total += flow;
    nodes.push({
      id,
      column: 1,
      label: brief(listener.address, 24),
      note: `${listener.protocol}${listener.tls ? " + TLS" : ""}, ${count(listener.connections)} conn.`,
      flow,
    });
    links.push({ from: "clients", to: id, flow });
  }
  nodes.push({
    id: "clients",
    column: 0,
    label: "Clients",
    note: `${count(total)}/s`,
    flow: total,
  });

  for (const name of names) {
    const row = overview.backends.find((it) => it.name === name);
    const backend = backends.find((it) => it.name === name);
    const flow = row?.requests_per_second ?? 0;
    const waiting = row?.waiting ?? 0;
    const rejected = row?.rejections_per_second ?? 0;
    const facts = [`${count(flow)}/s`];
    if (waiting > 0) facts.push(`${count(waiting)} wait`);
    if (rejected > 0) facts.push(`${count(rejected)}/s rejected`);
    nodes.push({
      id: `backend ${name}`,
      column: 3,
      label: brief(name, 26),
      note: facts.join(", "),
      flow,
      href: backendLink(name),
      ...(rejected > 0 || waiting > 0 ? { tone: "warn" as const } : {}),
    });
    if (!backend) continue;
    const endpoints = rates.get(name) ?? [];
    const sum = endpoints.reduce((all, it) => all + it.perSecond, 0);
    // New endpoints stay in the picture until they have their share.
    const isNew = (it: EndpointRate) => it.firstSeen > 0 && performance.now() - it.firstSeen < NEW_MS;
    const order = [...endpoints].sort(
      (one, other) => Number(isNew(other)) - Number(isNew(one)) || other.perSecond - one.perSecond,
    );
    const most = endpoints.length <= MAX_ENDPOINTS + 1 ? MAX_ENDPOINTS + 1 : MAX_ENDPOINTS;
    const chosen = new Set(endpoints.length <= most ? endpoints : order.slice(0, most));
    for (const it of endpoints) {
      if (!chosen.has(it)) continue;
      const { tone, text } = health(it);
      const load = it.limit === null ? `${it.in_flight} in flight` : `${it.in_flight} of ${it.limit}`;
      const id = `endpoint ${name} ${it.address}`;
      nodes.push({
        id,
        column: 4,
        label: it.address,
        note: `${sum > 0 ? percent(it.perSecond / sum) : "–"}, ${load}${tone === "good" ? "" : `, ${text}`}`,
        flow: it.perSecond,
        ...(tone === "bad" ? { tone: "bad" as const } : isNew(it) ? { tone: "new" as const } : {}),
      });
      links.push({ from: `backend ${name}`, to: id, flow: it.perSecond });
    }
    const rest = backend.endpoint_count - chosen.size;
    if (rest > 0) {
      const flow = endpoints.filter((it) => !chosen.has(it)).reduce((all, it) => all + it.perSecond, 0);
      const id = `endpoint ${name} rest`;
      nodes.push({ id, column: 4, label: `${count(rest)} more`, note: `${count(flow)}/s`, flow, href: backendLink(name) });
      links.push({ from: `backend ${name}`, to: id, flow });
    }
  }
  return { nodes, links };
}

const COLUMNS = ["Clients", "Listeners", "Rules of routes", "Backends", "Endpoints"];
/** Positions of the columns in a picture of this width. */
const WIDTH = 1120;
const X = [0, 150, 385, 640, 905];

function Picture({ nodes, links, at }: { nodes: FlowNode[]; links: FlowLink[]; at: number }) {
  const scale = useScale(nodes, at);
  const columns = COLUMNS.map((_, column) => nodes.filter((it) => it.column === column));
  const heightOf = (it: FlowNode) => Math.max(MIN_NODE, it.flow * scale);
  const heights = columns.map((column) => column.reduce((sum, it) => sum + heightOf(it) + NODE_GAP, -NODE_GAP));
  const height = Math.max(MIN_NODE, ...heights);
  const placed = new Map<string, Placed>();
  columns.forEach((column, index) => {
    let y = (height - heights[index]!) / 2;
    for (const node of column) {
      const own = heightOf(node);
      placed.set(node.id, { ...node, x: X[index]!, y, height: own });
      y += own + NODE_GAP;
    }
  });
  // Links leave and reach a node in order, in the middle of its height.
  const offsets = new Map<string, number>();
  const start = (node: Placed, side: string, all: FlowLink[]) => {
    const key = `${side} ${node.id}`;
    if (!offsets.has(key)) {
      const sum = all.reduce((total, it) => total + it.flow * scale, 0);
      offsets.set(key, node.y + (node.height - sum) / 2);
    }
    return offsets.get(key)!;
  };
  const curves = links.flatMap((link) => {
    const from = placed.get(link.from);
    const to = placed.get(link.to);
    if (!from || !to) return [];
    const width = link.flow * scale;
    const y1 = start(from, "out", links.filter((it) => it.from === link.from)) + width / 2;
    const y2 = start(to, "in", links.filter((it) => it.to === link.to)) + width / 2;
    offsets.set(`out ${from.id}`, y1 + width / 2);
    offsets.set(`in ${to.id}`, y2 + width / 2);
    const x1 = from.x + BAR;
    const middle = (x1 + to.x) / 2;
    // A thin line shows that requests may flow here.
    const d = `M${x1} ${y1.toFixed(1)}C${middle} ${y1.toFixed(1)} ${middle} ${y2.toFixed(1)} ${to.x} ${y2.toFixed(1)}`;
    const kind = `link${link.isEstimate ? " estimate" : ""}${to.tone === "new" ? " new" : ""}${link.flow === 0 ? " idle" : ""}`;
    return [<path key={`${link.from} ${link.to}`} class={kind} d={d} stroke-width={Math.max(1, width).toFixed(1)} />];
  });
  const texts = [...placed.values()].map((node) => {
    const middle = node.y + node.height / 2;
    const body = (
      <>
        <title>{`${node.label}: ${node.note}`}</title>
        <rect class={`node-bar ${node.tone ?? ""}`} x={node.x} y={node.y} width={BAR} height={node.height} rx="2" />
        <text class="node-label" x={node.x + BAR + 7} y={middle - 3}>
          {visible(node.label)}
        </text>
        <text class={`node-note ${node.tone ?? ""}`} x={node.x + BAR + 7} y={middle + 13}>
          {node.note}
        </text>
      </>
    );
    return node.href ? (
      <a key={node.id} href={node.href}>
        {body}
      </a>
    ) : (
      <g key={node.id}>{body}</g>
    );
  });
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Flow of requests">
      <svg class="flow" viewBox={`0 0 ${WIDTH} ${(height + 36).toFixed(0)}`} role="group" aria-label="Flow of requests">
        {COLUMNS.map((title, index) => (
          <text key={title} class="column-title" x={X[index]!} y="12">
            {title}
          </text>
        ))}
        <g transform="translate(0 28)">
          {curves}
          {texts}
        </g>
      </svg>
    </div>
  );
}

/** Returns the pixels of a request per second. The largest flow of late has the whole height. */
function useScale(nodes: FlowNode[], at: number): number {
  const [most, setMost] = useState(0);
  const now = nodes.find((it) => it.id === "clients")?.flow ?? 0;
  useEffect(() => setMost((last) => Math.max(now, last * 0.97)), [at]);
  const top = Math.max(most, now);
  return top > 0 ? FLOW_HEIGHT / top : 0;
}
