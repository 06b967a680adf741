// Small parts of views: tiles, bars, tables, states.

import type { ComponentChildren } from "preact";
import { count, percent, visible } from "./text";
import type { Answer } from "./polling";

/** Text of others, with invisible characters as escapes. */
export function Name({ text, wrap = false }: { text: string; wrap?: boolean }) {
  const shown = visible(text);
  return (
    <bdi class={wrap ? "name wrap" : "name"} title={shown}>
      {shown}
    </bdi>
  );
}

export function Tile(props: { label: string; value: string; note?: string; tone?: Tone | undefined; href?: string }) {
  const { label, value, note, tone, href } = props;
  const body = (
    <>
      <span class="tile-label">{label}</span>
      <span class={`tile-value ${tone ?? ""}`}>{value}</span>
      <span class="tile-note">{note ?? "\u00a0"}</span>
    </>
  );
  return href ? (
    <a class="tile" href={href}>
      {body}
    </a>
  ) : (
    <div class="tile">{body}</div>
  );
}

export type Tone = "good" | "warn" | "bad" | "quiet";

export function Badge({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return <span class={`badge ${tone}`}>{children}</span>;
}

/** Share of something that has a maximum; without a maximum the number alone. */
export function Fill({ value, max, label }: { value: number; max: number | null; label?: string }) {
  const share = max === null || max === 0 ? 0 : Math.min(1, value / max);
  const text = label ?? (max === null ? count(value) : `${count(value)} / ${count(max)}`);
  const tone = share >= 1 ? "full" : "";
  return (
    <span class="fill">
      <span class="fill-text">{text}</span>
      <svg class={`fill-bar ${tone}`} viewBox="0 0 60 6" preserveAspectRatio="none" aria-hidden="true">
        <rect class="fill-track" width="60" height="6" rx="1" />
        {max !== null && <rect class="fill-value" width={60 * share} height="6" rx="1" />}
      </svg>
    </span>
  );
}

/** Bar behind a share of a total. */
export function Share({ value, total }: { value: number; total: number }) {
  const share = total > 0 ? value / total : 0;
  return <Fill value={share} max={1} label={total > 0 ? percent(share) : "–"} />;
}

export interface Column<R> {
  label: string;
  /** True for numbers: aligned at the right. */
  numeric?: boolean;
  cell: (row: R) => ComponentChildren;
  hint?: string;
}

export function Table<R>(props: {
  caption: string;
  columns: Column<R>[];
  rows: R[];
  id: (row: R) => string;
  empty: string;
}) {
  const { caption, columns, rows, id, empty } = props;
  if (rows.length === 0) return <p class="empty">{empty}</p>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={caption}>
      <table>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr>
            {columns.map((it) => (
              <th key={it.label} scope="col" class={it.numeric ? "num" : ""} title={it.hint ?? ""}>
                {it.label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={id(row)}>
              {columns.map((it, index) => {
                const kind = it.numeric ? "num" : "";
                return index === 0 ? (
                  <th key={it.label} scope="row" class={kind}>
                    {it.cell(row)}
                  </th>
                ) : (
                  <td key={it.label} class={kind}>
                    {it.cell(row)}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Panel(props: { title: string; aside?: ComponentChildren; children: ComponentChildren }) {
  return (
    <section class="panel">
      <header class="panel-head">
        <h2>{props.title}</h2>
        {props.aside && <div class="panel-aside">{props.aside}</div>}
      </header>
      {props.children}
    </section>
  );
}

/** The content of an answer, or its state: loading, switched off, failed. */
export function Loaded<T>(props: {
  answer: Answer<T>;
  children: (data: T) => ComponentChildren;
  /** Sentence for an answer of 404: this part of Sheave is off. */
  off?: string;
}) {
  const { answer, children, off } = props;
  const { data, error } = answer;
  if (error && error.status === 404 && off) return <p class="empty">{off}</p>;
  if (error && error.status < 500) {
    return (
      <p class="empty" role="alert">
        Sheave rejects the question: <Name text={error.message} wrap />
      </p>
    );
  }
  if (data === null) {
    return (
      <p class="empty" aria-busy="true">
        Loading…
      </p>
    );
  }
  return <>{children(data)}</>;
}

export function backendLink(name: string): string {
  return `#/backend?name=${encodeURIComponent(name)}`;
}

export function BackendName({ name }: { name: string }) {
  return (
    <a href={backendLink(name)}>
      <Name text={name} />
    </a>
  );
}
