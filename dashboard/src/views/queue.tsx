// Waiting and rejected requests, and rate limits.

import { useState } from "preact/hooks";
import type { BackendPage, Overview } from "../api";
import { Curve, RangeChoice, useHistory, type Range } from "../curve";
import { BackendName, Fill, Loaded, Name, Panel, Table } from "../parts";
import { usePolling } from "../polling";
import { count, duration } from "../text";
import type { ViewProps } from "../main";
import { Rate } from "./backends";

/** Meaning of the reasons, as docs/reference/metrics.md names them. */
const REASONS: Record<string, string> = {
  no_endpoint: "503: the backend has no endpoint",
  unreachable: "503: no endpoint can be reached",
  no_slot: "429: every slot is taken, and there is no queue",
  queue_full: "429: the queue is full",
  queue_deadline: "429: it would wait longer than it may",
  queue_evicted: "429: a request of a higher priority took its place",
  queue_shed: "429: the queue has not been empty for long",
  queue_timeout: "429: it has waited as long as it may",
};

export function QueueView({ overview }: ViewProps) {
  const [range, setRange] = useState<Range>("10m");
  const history = useHistory(range);
  const waiting = usePolling<BackendPage>("overview/backends", 1000, [
    ["sort", "waiting"],
    ["limit", 20],
  ]);
  const rejecting = usePolling<BackendPage>("overview/backends", 1000, [
    ["sort", "rejections"],
    ["limit", 20],
  ]);
  return (
    <>
      <Panel title="Curves" aside={<RangeChoice range={range} choose={setRange} />}>
        <Loaded answer={history}>
          {(it) => (
            <div class="curves">
              <Curve
                title="Waiting in the queue"
                stepSeconds={it.step_seconds}
                format={count}
                integers
                lines={[{ label: "waiting, at most", values: it.waiting, colour: 1 }]}
              />
              <Curve
                title="Rejected per second"
                stepSeconds={it.step_seconds}
                format={count}
                lines={[{ label: "rejected by slots and queues", values: it.rejections_per_second, colour: 2 }]}
              />
            </div>
          )}
        </Loaded>
      </Panel>
      <Panel title="Backends with a queue">
        <Loaded answer={waiting}>
          {(page) => (
            <Table
              caption="Backends with a queue"
              rows={page.rows.filter((it) => it.waiting > 0 || it.queue_max > 0)}
              id={(it) => it.name}
              empty="No backend has a queue: set maxInFlightPerEndpoint in a BackendPolicy."
              columns={[
                { label: "Backend", cell: (it) => <BackendName name={it.name} /> },
                { label: "Waiting / places", cell: (it) => <Fill value={it.waiting} max={it.queue_max} /> },
                { label: "In flight / slots", cell: (it) => <Fill value={it.in_flight} max={it.slots} /> },
                { label: "Rejected/s", numeric: true, cell: (it) => <Rate value={it.rejections_per_second} tone="warn" /> },
                { label: "Slot time", numeric: true, cell: (it) => duration(it.service_seconds) },
              ]}
            />
          )}
        </Loaded>
      </Panel>
      <Panel title="Rejected requests by reason">
        <Table<Overview["rejections"][number]>
          caption="Rejected requests by reason"
          rows={overview.rejections}
          id={(it) => it.reason}
          empty="There are no reasons."
          columns={[
            { label: "Reason", cell: (it) => <code>{it.reason}</code> },
            { label: "Meaning", cell: (it) => <span class="wrap">{REASONS[it.reason] ?? ""}</span> },
            { label: "Per second", numeric: true, cell: (it) => <Rate value={it.per_second} tone="warn" /> },
            { label: "Since the start", numeric: true, cell: (it) => count(it.since_start) },
          ]}
        />
      </Panel>
      <Panel title="Backends that reject">
        <Loaded answer={rejecting}>
          {(page) => (
            <Table
              caption="Backends that reject"
              rows={page.rows.filter((it) => it.rejected.length > 0)}
              id={(it) => it.name}
              empty="None of them has rejected a request since the start."
              columns={[
                { label: "Backend", cell: (it) => <BackendName name={it.name} /> },
                { label: "Rejected/s", numeric: true, cell: (it) => <Rate value={it.rejections_per_second} tone="warn" /> },
                {
                  label: "Since the start",
                  cell: (it) => (
                    <span class="wrap">
                      {it.rejected.map(([reason, number]) => `${reason} ${count(number)}`).join(", ")}
                    </span>
                  ),
                },
              ]}
            />
          )}
        </Loaded>
      </Panel>
      <Panel title="Rate limits">
        <Table<Overview["rate_limits"][number]>
          caption="Rate limits"
          rows={overview.rate_limits}
          id={(it) => `${it.policy} ${it.target}`}
          empty="There is no RateLimitPolicy."
          columns={[
            { label: "Policy", cell: (it) => <Name text={it.policy} /> },
            { label: "Target", cell: (it) => <Name text={it.target} /> },
            { label: "Rejected/s", numeric: true, cell: (it) => <Rate value={it.rejections_per_second} tone="warn" /> },
            { label: "Admitted since the start", numeric: true, cell: (it) => count(it.admitted) },
            { label: "Rejected since the start", numeric: true, cell: (it) => count(it.rejected) },
          ]}
        />
      </Panel>
    </>
  );
}
