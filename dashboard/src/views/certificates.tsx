// Certificates in use, the first to expire first.

import type { Certificates } from "../api";
import { Badge, Loaded, Name, Panel, Table, type Tone } from "../parts";
import { usePolling } from "../polling";
import { clock, span } from "../text";

const DAY = 86400;

export function CertificatesView() {
  const answer = usePolling<Certificates>("certificates", 5000);
  return (
    <Panel title="Certificates in use">
      <Loaded answer={answer}>
        {(list) => (
          <>
            <Table
              caption="Certificates in use"
              rows={list.certificates}
              id={(it) => `${it.name} ${it.not_after_seconds}`}
              empty="No listener terminates TLS."
              columns={[
                { label: "Certificate", cell: (it) => <Name text={it.name} /> },
                { label: "State", cell: (it) => <State left={it.not_after_seconds - list.now_seconds} problem={it.problem} /> },
                { label: "Expires", cell: (it) => clock(it.not_after_seconds, true) },
                {
                  label: "Left",
                  numeric: true,
                  cell: (it) => {
                    const left = it.not_after_seconds - list.now_seconds;
                    return left > 0 ? span(left) : "–";
                  },
                },
              ]}
            />
            {list.total > list.certificates.length && (
              <p class="quiet">The first {list.certificates.length} of {list.total} to expire are shown.</p>
            )}
          </>
        )}
      </Loaded>
    </Panel>
  );
}

function State({ left, problem }: { left: number; problem: string | null }) {
  const [tone, text]: [Tone, string] =
    problem !== null ? ["bad", problem] : left < DAY ? ["bad", "expires today"] : left < 14 * DAY ? ["warn", "expires soon"] : ["good", "valid"];
  return <Badge tone={tone}>{text}</Badge>;
}
