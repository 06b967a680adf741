// The state in numbers and curves, and the busiest backends and routes.

import { useState } from "preact/hooks";
import { HistoryCurves, RangeChoice, useHistory, type Range } from "../curve";
import { Panel, Table, Tile } from "../parts";
import { count, duration, percent, plural } from "../text";
import type { ViewProps } from "../main";
import { backendColumns } from "./backends";
import { Name } from "../parts";

const ROWS = 10;

export function OverviewView({ overview }: ViewProps) {
  const [range, setRange] = useState<Range>("10m");
  const history = useHistory(range);
  const { totals } = overview;
  const rate = totals.requests_per_second;
  const errors = totals.errors_per_second;
  const rejected = totals.rejections_per_second + totals.rate_limited_per_second;
  const isFull = totals.slots !== null && totals.slots > 0 && totals.in_flight >= totals.slots;
  return (
    <>
      <div class="tiles eight">
        <Tile label="Requests" value={`${count(rate)}/s`} note={plural(overview.route_count, "rule")} />
        <Tile
          label="Errors (5xx)"
          value={`${count(errors)}/s`}
          note={rate > 0 ? `${percent(errors / rate)} of requests` : ""}
          tone={errors > 0 ? "bad" : undefined}
        />
        <Tile
          label="Rejected (429, 503)"
          value={`${count(rejected)}/s`}
          note={totals.rate_limited_per_second > 0 ? `${count(totals.rate_limited_per_second)}/s by rate limits` : ""}
          tone={rejected > 0 ? "warn" : undefined}
          href="#/queue"
        />
        <Tile
          label="Waiting"
          value={count(totals.waiting)}
          note="for a slot"
          tone={totals.waiting > 0 ? "warn" : undefined}
          href="#/queue"
        />
        <Tile
          label="In flight"
          value={count(totals.in_flight)}
          note={totals.slots === null ? "no limit" : `of ${count(totals.slots)} slots`}
          tone={isFull ? "warn" : undefined}
        />
        <Tile label="Duration p50" value={duration(totals.p50_seconds)} note="of complete requests" />
        <Tile label="Duration p99" value={duration(totals.p99_seconds)} note="of complete requests" />
        <Tile
          label="Endpoints"
          value={count(totals.endpoints)}
          note={totals.troubled_endpoints > 0 ? `${totals.troubled_endpoints} not serving` : "all serving"}
          tone={totals.troubled_endpoints > 0 ? "bad" : undefined}
          href="#/backends"
        />
      </div>
      <Panel title="Curves" aside={<RangeChoice range={range} choose={setRange} />}>
        <HistoryCurves answer={history} />
      </Panel>
      <Panel title="Busiest backends" aside={<a href="#/backends">all {count(overview.backend_count)}</a>}>
        <Table
          caption="Busiest backends"
          columns={backendColumns(rate)}
          rows={overview.backends.slice(0, ROWS)}
          id={(row) => row.name}
          empty="There is no backend: no route refers to a Service."
        />
      </Panel>
      <Panel title="Busiest rules of routes" aside={<a href="#/flow">flow</a>}>
        <Table
          caption="Busiest rules of routes"
          rows={overview.routes.slice(0, ROWS)}
          id={(row) => row.name}
          empty="There is no route."
          columns={[
            { label: "Rule", cell: (row) => <Name text={row.name} /> },
            { label: "Requests/s", numeric: true, cell: (row) => count(row.requests_per_second) },
            { label: "Errors/s", numeric: true, cell: (row) => count(row.errors_per_second) },
            { label: "Rejected/s", numeric: true, cell: (row) => count(row.rejections_per_second) },
            { label: "p50", numeric: true, cell: (row) => duration(row.p50_seconds) },
            { label: "p99", numeric: true, cell: (row) => duration(row.p99_seconds) },
            {
              label: "Backends",
              cell: (row) =>
                row.backends.length === 0 ? "none" : row.backends.map(([name]) => <Name key={name} text={name} />),
            },
          ]}
        />
      </Panel>
      <Panel title="Listeners">
        <Table
          caption="Listeners"
          rows={overview.listeners}
          id={(row) => `${row.name} ${row.address} ${row.protocol}`}
          empty="There is no listener."
          columns={[
            { label: "Listener", cell: (row) => <Name text={row.name} /> },
            { label: "Address", cell: (row) => <Name text={row.address} /> },
            {
              label: "Protocol",
              cell: (row) => `${row.protocol}${row.tls ? " + TLS" : ""}${row.http3 ? " + HTTP/3" : ""}`,
            },
            { label: "Open connections", numeric: true, cell: (row) => count(row.connections) },
            { label: "New/s", numeric: true, cell: (row) => count(row.connections_per_second) },
          ]}
        />
      </Panel>
    </>
  );
}
