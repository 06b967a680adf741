// Connections that are balanced as a whole, Services of type LoadBalancer, and transparent mode.

import type { LoadBalancers, Transparent } from "../api";
import { Badge, Loaded, Name, Panel, Table, Tile } from "../parts";
import { usePolling } from "../polling";
import { count } from "../text";
import type { ViewProps } from "../main";

export function LayerFourView({ overview }: ViewProps) {
  const services = usePolling<LoadBalancers>("load-balancers", 3000);
  const transparent = usePolling<Transparent>(overview.process.transparent ? "transparent" : null, 3000);
  const listeners = overview.listeners.filter((it) => it.protocol !== "http" || it.intercepted);
  return (
    <>
      <Panel title="TCP and UDP listeners">
        <Table
          caption="TCP and UDP listeners"
          rows={listeners}
          id={(it) => `${it.name} ${it.address} ${it.protocol}`}
          empty="Every listener serves HTTP requests."
          columns={[
            { label: "Listener", cell: (it) => <Name text={it.name} /> },
            { label: "Address", cell: (it) => <Name text={it.address} /> },
            { label: "Protocol", cell: (it) => it.protocol },
            { label: "Intercepted", cell: (it) => (it.intercepted ? "yes" : "no") },
            { label: "Open", numeric: true, cell: (it) => count(it.connections) },
            { label: "New/s", numeric: true, cell: (it) => count(it.connections_per_second) },
          ]}
        />
      </Panel>
      <Panel title="Services of type LoadBalancer">
        <Loaded answer={services}>
          {(list) => (
            <Table
              caption="Services of type LoadBalancer"
              rows={list.services}
              id={(it) => `${it.namespace}/${it.name}`}
              empty="This Sheave serves no Service of type LoadBalancer (--load-balancer)."
              columns={[
                { label: "Service", cell: (it) => <Name text={`${it.namespace}/${it.name}`} /> },
                { label: "Addresses", cell: (it) => <Name text={it.addresses.join(", ") || "none yet"} wrap /> },
                { label: "Ports", cell: (it) => <Name text={it.sockets.join(", ") || "none"} wrap /> },
                { label: "Carried by", cell: (it) => (it.node_local ? "nodes with endpoints" : "any node") },
                { label: "Findings", cell: (it) => <Findings sentences={it.findings} /> },
              ]}
            />
          )}
        </Loaded>
      </Panel>
      <Panel title="Transparent mode">
        {!overview.process.transparent ? (
          <p class="empty">Transparent mode is off: Sheave takes no connections to ClusterIPs on this node.</p>
        ) : (
          <Loaded answer={transparent} off="Transparent mode is off.">
            {(node) => (
              <>
                <div class="tiles">
                  <Tile
                    label="Rules"
                    value={node.in_force ? "in force" : node.withdrawn ? "withdrawn" : "not in force"}
                    note="of this node"
                    tone={node.in_force ? "good" : "bad"}
                  />
                  <Tile label="Bypassing" value={count(node.bypassing_connections)} note="older connections" />
                  <Tile label="Services" value={count(node.services.length)} note="annotated" />
                </div>
                {Object.entries(node.node_findings).map(([reason, sentences]) => (
                  <p key={reason} class="notice warn">
                    {reason}: <Name text={sentences.join("; ")} wrap />
                  </p>
                ))}
                <Table
                  caption="Transparent Services"
                  rows={node.services}
                  id={(it) => `${it.namespace}/${it.name}`}
                  empty="No Service has the annotation sheave.dev/balance."
                  columns={[
                    { label: "Service", cell: (it) => <Name text={`${it.namespace}/${it.name}`} /> },
                    {
                      label: "Taken addresses",
                      cell: (it) =>
                        it.addresses.length > 0 ? (
                          <Name text={it.addresses.join(", ")} wrap />
                        ) : (
                          <Badge tone="warn">none</Badge>
                        ),
                    },
                    { label: "Older connections", cell: (it) => (it.adopt === "reset" ? "are reset" : "stay") },
                    {
                      label: "Findings",
                      cell: (it) => <Findings sentences={it.findings.map((one) => `${one.reason}: ${one.message}`)} />,
                    },
                  ]}
                />
              </>
            )}
          </Loaded>
        )}
      </Panel>
      <p class="quiet">
        Traffic of the eBPF data path is counted by <code>sheave l4</code> on each node: <code>sheave top --admin 127.0.0.1:9911</code>.
      </p>
    </>
  );
}

function Findings({ sentences }: { sentences: string[] }) {
  if (sentences.length === 0) return <span class="quiet">none</span>;
  return <Name text={sentences.join("; ")} wrap />;
}
