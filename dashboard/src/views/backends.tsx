// All backends: searched, sorted and paged by Sheave.

import { useState } from "preact/hooks";
import type { BackendPage, BackendRow } from "../api";
import { Badge, BackendName, Fill, Loaded, Panel, Table, type Column } from "../parts";
import { usePolling } from "../polling";
import { count, duration, percent } from "../text";
import type { ViewProps } from "../main";

const PAGE = 50;

const ORDERS = [
  ["requests", "Requests"],
  ["waiting", "Waiting"],
  ["rejections", "Rejected"],
  ["failures", "Failures"],
  ["troubled", "Endpoints not serving"],
  ["name", "Name"],
] as const;

export function backendColumns(total: number): Column<BackendRow>[] {
  return [
    {
      label: "Backend",
      cell: (row) => (
        <>
          <BackendName name={row.name} />
          {row.panicking && <Badge tone="bad">panic mode</Badge>}
        </>
      ),
    },
    { label: "Requests/s", numeric: true, cell: (row) => count(row.requests_per_second) },
    {
      label: "Share",
      numeric: true,
      cell: (row) => (total > 0 ? percent(row.requests_per_second / total) : "–"),
      hint: "Share of all requests",
    },
    { label: "Failures/s", numeric: true, cell: (row) => <Rate value={row.failures_per_second} tone="bad" /> },
    { label: "Rejected/s", numeric: true, cell: (row) => <Rate value={row.rejections_per_second} tone="warn" /> },
    { label: "Waiting", numeric: true, cell: (row) => <Rate value={row.waiting} tone="warn" /> },
    {
      label: "In flight / slots",
      cell: (row) => <Fill value={row.in_flight} max={row.slots} />,
    },
    {
      label: "Endpoints",
      numeric: true,
      cell: (row) =>
        row.troubled_endpoints > 0 ? (
          <span class="bad">
            {count(row.endpoints - row.troubled_endpoints)} of {count(row.endpoints)}
          </span>
        ) : row.endpoints === 0 ? (
          <span class="bad">none</span>
        ) : (
          count(row.endpoints)
        ),
      hint: "Endpoints that serve",
    },
    {
      label: "Slot time",
      numeric: true,
      cell: (row) => duration(row.service_seconds),
      hint: "Mean time for which a request holds a slot",
    },
  ];
}

export function Rate({ value, tone }: { value: number; tone: "warn" | "bad" }) {
  return value > 0 ? <span class={tone}>{count(value)}</span> : <span class="quiet">0</span>;
}

export function BackendsView({ overview }: ViewProps) {
  const [search, setSearch] = useState("");
  const [sort, setSort] = useState<string>("requests");
  const [offset, setOffset] = useState(0);
  const answer = usePolling<BackendPage>("overview/backends", 1000, [
    ["search", search],
    ["sort", sort],
    ["offset", offset],
    ["limit", PAGE],
  ]);
  return (
    <Panel title="All backends">
      <div class="tools">
        <label>
          Search
          <input
            type="search"
            value={search}
            placeholder="namespace/service:port"
            autoComplete="off"
            spellcheck={false}
            onInput={(event) => (setSearch(event.currentTarget.value), setOffset(0))}
          />
        </label>
        <label>
          Sort by
          <select value={sort} onChange={(event) => (setSort(event.currentTarget.value), setOffset(0))}>
            {ORDERS.map(([id, title]) => (
              <option key={id} value={id}>
                {title}
              </option>
            ))}
          </select>
        </label>
      </div>
      <Loaded answer={answer}>
        {(page) => (
          <>
            <Table
              caption="Backends"
              columns={backendColumns(overview.totals.requests_per_second)}
              rows={page.rows}
              id={(row) => row.name}
              empty={search ? "No backend has this in its name." : "There is no backend: no route refers to a Service."}
            />
            <Pager offset={page.offset} size={PAGE} total={page.total} go={setOffset} />
          </>
        )}
      </Loaded>
    </Panel>
  );
}

export function Pager(props: { offset: number; size: number; total: number; go: (offset: number) => void }) {
  const { offset, size, total, go } = props;
  if (total <= size) return <></>;
  const last = Math.min(total, offset + size);
  return (
    <div class="pager" role="group" aria-label="Pages">
      <button type="button" disabled={offset === 0} onClick={() => go(Math.max(0, offset - size))}>
        Previous
      </button>
      <span>
        {count(Math.min(offset + 1, total))}–{last} of {total}
      </span>
      <button type="button" disabled={last >= total} onClick={() => go(offset + size)}>
        Next
      </button>
    </div>
  );
}
