// Other replicas, and the slots leased among them.

import type { Replicas } from "../api";
import { Badge, Loaded, Name, Panel, Table, Tile } from "../parts";
import { usePolling } from "../polling";
import { clock, count, span } from "../text";
import type { ViewProps } from "../main";

const OFF = "This Sheave leases no slots: it runs alone, or replicas divide limits statically (--lease-slots is off).";

export function ReplicasView({ overview }: ViewProps) {
  const isOn = overview.process.leases_slots;
  const answer = usePolling<Replicas>(isOn ? "replicas" : null, 2000);
  if (!isOn) return <p class="panel empty">{OFF}</p>;
  return (
    <Loaded answer={answer} off={OFF}>
      {(replicas) => {
        const connected = replicas.peers.filter((it) => it.connected_seconds !== null).length;
        const isWhole = connected === replicas.peers.length;
        return (
          <>
            {replicas.certificate_problem !== null && (
              <p class="notice bad" role="status">
                The newest certificates cannot be used: <Name text={replicas.certificate_problem} wrap />
              </p>
            )}
            <div class="tiles">
              <Tile label="Slots held" value={count(replicas.slots_held)} note="may be used here" />
              <Tile label="Lent" value={count(replicas.slots_lent)} note="to other replicas" />
              <Tile label="Borrowed" value={count(replicas.slots_borrowed)} note="of those held" />
              <Tile
                label="Connected"
                value={`${connected} of ${replicas.peers.length}`}
                note="other replicas"
                tone={isWhole ? undefined : "warn"}
              />
              <Tile
                label="Certificate"
                value={replicas.certificate_expiry === null ? "none" : clock(replicas.certificate_expiry, true)}
                note={replicas.certificate_expiry === null ? "" : "expires"}
              />
            </div>
            <Panel title="Other replicas">
              <Table
                caption="Other replicas"
                rows={replicas.peers}
                id={(it) => it.address}
                empty="There is no other replica."
                columns={[
                  { label: "Address", cell: (it) => <Name text={it.address} /> },
                  {
                    label: "Connection",
                    cell: (it) =>
                      it.connected_seconds === null ? (
                        <Badge tone="bad">not connected</Badge>
                      ) : (
                        <Badge tone="good">connected</Badge>
                      ),
                  },
                  {
                    label: "For",
                    numeric: true,
                    cell: (it) => (it.connected_seconds === null ? "–" : span(it.connected_seconds)),
                  },
                  { label: "Last error", cell: (it) => (it.last_error ? <Name text={it.last_error} wrap /> : "none") },
                ]}
              />
            </Panel>
          </>
        );
      }}
    </Loaded>
  );
}
