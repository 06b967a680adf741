// The admin API, as docs/operate/dashboard.md describes it.

export interface Overview {
  sample: number;
  at_seconds: number | null;
  interval_seconds: number;
  process: {
    version: string;
    phase: "starting" | "ready" | "leaving" | "draining";
    started_seconds: number;
    node: string;
    generation: number;
    applied_at_seconds: number | null;
    problems: number;
    unbound_listeners: number;
    certificates: number;
    first_certificate_expiry: number | null;
    load_balancers: number;
    memory_bytes: number;
    transparent: boolean;
    leases_slots: boolean;
    xds: boolean;
  };
  totals: {
    requests_per_second: number;
    errors_per_second: number;
    rejections_per_second: number;
    rate_limited_per_second: number;
    p50_seconds: number | null;
    p99_seconds: number | null;
    waiting: number;
    in_flight: number;
    slots: number | null;
    endpoints: number;
    troubled_endpoints: number;
    client_connections: number;
  };
  listeners: ListenerRow[];
  listener_count: number;
  routes: RouteRow[];
  route_count: number;
  backends: BackendRow[];
  backend_count: number;
  rate_limits: { policy: string; target: string; admitted: number; rejected: number; rejections_per_second: number }[];
  rejections: { reason: string; per_second: number; since_start: number }[];
}

export interface ListenerRow {
  name: string;
  address: string;
  protocol: "http" | "tcp" | "udp" | "detected";
  tls: boolean;
  http3: boolean;
  intercepted: boolean;
  connections: number;
  connections_per_second: number;
  routes: string[];
}

export interface RouteRow {
  name: string;
  requests_per_second: number;
  errors_per_second: number;
  rejections_per_second: number;
  p50_seconds: number | null;
  p99_seconds: number | null;
  backends: [string, number][];
}

export interface BackendRow {
  name: string;
  requests_per_second: number;
  failures_per_second: number;
  retries_per_second: number;
  rejections_per_second: number;
  waiting: number;
  queue_max: number;
  in_flight: number;
  slots: number | null;
  endpoints: number;
  troubled_endpoints: number;
  panicking: boolean;
  service_seconds: number | null;
  rejected: [string, number][];
}

export interface BackendPage {
  total: number;
  offset: number;
  rows: BackendRow[];
}

export interface Endpoint {
  address: string;
  weight: number;
  health: string;
  in_flight: number;
  limit: number | null;
  limit_reason: string | null;
  idle_connections: number;
  requests: number;
  failures: number;
  latency_seconds: number | null;
  http3: string | null;
}

export interface Backend {
  name: string;
  algorithm: string;
  max_in_flight_per_endpoint: number | null;
  auto_limit: boolean;
  queue_max_requests: number;
  queue_timeout_seconds: number;
  queue_length: number;
  panicking: boolean;
  retries: number;
  service_time_seconds: number | null;
  endpoint_count: number;
  endpoints: Endpoint[];
}

export type Series = (number | null)[];

export interface History {
  step_seconds: number;
  requests_per_second: Series;
  errors_per_second: Series;
  rejections_per_second: Series;
  waiting: Series;
  in_flight: Series;
  slots: Series;
  endpoints: Series;
  p50_seconds: Series;
  p99_seconds: Series;
}

export interface Replicas {
  slots_held: number;
  slots_lent: number;
  slots_borrowed: number;
  certificate_expiry: number | null;
  certificate_problem: string | null;
  peers: { address: string; connected_seconds: number | null; last_error: string | null }[];
}

export interface Transparent {
  node: string;
  proxy_addresses: string[];
  in_force: boolean;
  withdrawn: boolean;
  bypassing_connections: number;
  services: {
    namespace: string;
    name: string;
    addresses: string[];
    adopt: string;
    findings: { reason: string; message: string }[];
  }[];
  node_findings: Record<string, string[]>;
}

export interface LoadBalancers {
  total: number;
  services: {
    namespace: string;
    name: string;
    addresses: string[];
    sockets: string[];
    node_local: boolean;
    findings: string[];
  }[];
}

export interface Certificates {
  now_seconds: number;
  total: number;
  certificates: { name: string; not_after_seconds: number; problem: string | null }[];
}

export interface Problems {
  generation: number;
  total: number;
  problems: { file: string; document: number; object: string; field: string; message: string }[];
  unbound_listeners: string[];
}

export interface Explanation {
  lines: { label: string; text: string }[];
}

/** An answer of Sheave that is an error: it says why. */
export class RefusedQuestion extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Time after which a question counts as unanswered. */
const PATIENCE_MS = 8000;

export type Parameters = [string, string | number][];

/** Asks `/api/v1/PATH`. The URL is relative, so that it is right behind a path prefix. */
export async function ask<T>(path: string, parameters: Parameters = []): Promise<T> {
  const query = new URLSearchParams(parameters.map(([name, value]) => [name, String(value)]));
  const url = `../api/v1/${path}${parameters.length > 0 ? `?${query}` : ""}`;
  const answer = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.ok) return (await answer.json()) as T;
  let reason = `status ${answer.status}`;
  try {
    const body = (await answer.json()) as { error?: string };
    if (body.error) reason = body.error;
  } catch {
    // Not Sheave's own answer, for example that of a proxy in front of it.
  }
  throw new RefusedQuestion(answer.status, reason);
}
