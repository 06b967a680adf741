// Errors of the configuration read last.

import type { Problems } from "../api";
import { Loaded, Name, Panel, Table } from "../parts";
import { usePolling } from "../polling";
import { clock, visible } from "../text";
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
              {list.problems.length === 0 && (
                <p class="empty">
                  The configuration has no errors. Number {list.generation} is in force
                  {applied === null ? "" : `, since ${clock(applied)}`}.
                </p>
              )}
              <ul class="problems">
                {list.problems.map((it) => (
                  <li key={`${it.file} ${it.document} ${it.object} ${it.field} ${it.message}`}>
                    <p class="problem-place">
                      <b>
                        <Name text={it.object || "the whole"} wrap />
                      </b>
                      {it.field && <Name text={it.field} wrap />}
                    </p>
                    <p class="wrap">{visible(it.message)}</p>
                    {it.file && (
                      <p class="quiet">
                        <Name text={`${it.file}, document ${it.document}`} wrap />
                      </p>
                    )}
                  </li>
                ))}
              </ul>
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
