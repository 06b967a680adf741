// Errors of the configuration read last.

import type { Problems } from "../api";
import { Loaded, Name, Panel, Table } from "../parts";
import { usePolling } from "../polling";
import { clock } from "../text";
import type { ViewProps } from "../main";

export function ProblemsView({ overview }: ViewProps) {
  const answer = usePolling<Problems>("problems", 2000);
  const applied = overview.process.applied_at_seconds;
  return (
    <>
      <Panel title="Errors of the configuration">
        <Loaded answer={answer}>
          {(list) => (
            <>
              <Table
                caption="Errors of the configuration"
                rows={list.problems}
                id={(it) => `${it.file} ${it.document} ${it.object} ${it.field} ${it.message}`}
                empty={`The configuration has no errors. Number ${list.generation} is in force${applied === null ? "" : `, since ${clock(applied)}`}.`}
                columns={[
                  { label: "Object", cell: (it) => <Name text={it.object || "–"} wrap /> },
                  { label: "Field", cell: (it) => <Name text={it.field || "–"} wrap /> },
                  { label: "Error", cell: (it) => <Name text={it.message} wrap /> },
                  {
                    label: "File",
                    cell: (it) =>
                      it.file ? <Name text={`${it.file}, document ${it.document}`} wrap /> : <span class="quiet">cluster</span>,
                  },
                ]}
              />
              {list.total > list.problems.length && (
                <p class="quiet">
                  The first {list.problems.length} of {list.total} are shown.
                </p>
              )}
            </>
          )}
        </Loaded>
      </Panel>
      <Panel title="Listeners without their address">
        <Loaded answer={answer}>
          {(list) => (
            <Table
              caption="Listeners without their address"
              rows={list.unbound_listeners}
              id={(it) => it}
              empty="Every address is bound."
              columns={[{ label: "Listener and reason", cell: (it) => <Name text={it} wrap /> }]}
            />
          )}
        </Loaded>
      </Panel>
    </>
  );
}
