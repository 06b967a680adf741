// Curves over time, in SVG.

import { useRef, useState } from "preact/hooks";
import type { History, Series } from "./api";
import { Loaded } from "./parts";
import { usePolling, type Answer } from "./polling";
import { clock, count, duration } from "./text";

export type Range = "10m" | "2h" | "24h";
export const RANGES: Range[] = ["10m", "2h", "24h"];

export interface Line {
  label: string;
  values: Series;
  /** Number of the colour. */
  colour: 1 | 2 | 3;
  /** True for a limit: a dashed line. */
  isLimit?: boolean;
}

const WIDTH = 600;
const HEIGHT = 110;

/** Returns a round number that is not below any value. */
export function ceiling(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 2.5, 5, 10].find((it) => it * power >= value * 0.999)!;
  return step * power;
}

/** Returns the path of a curve; it has a gap where more than a few steps are unknown. */
function path(values: Series, max: number): string {
  let text = "";
  let lastIndex = -10;
  const x = (index: number) => (values.length < 2 ? 0 : (index / (values.length - 1)) * WIDTH);
  values.forEach((value, index) => {
    if (value === null) return;
    const y = HEIGHT - (Math.min(value, max) / max) * (HEIGHT - 2) - 1;
    const isNear = index - lastIndex <= 3;
    const before = values[index - 1];
    const after = values[index + 1];
    text += `${isNear ? "L" : "M"}${x(index).toFixed(1)} ${y.toFixed(1)}`;
    // A point alone is drawn, too.
    if (!isNear && (after === null || after === undefined) && (before === null || before === undefined)) text += "h1";
    lastIndex = index;
  });
  return text;
}

/** Shortest curve, in steps: the time before the first value is left out. */
const MIN_STEPS = 24;

function trimmed(lines: Line[]): Line[] {
  const first = Math.min(...lines.map((it) => it.values.findIndex((value) => value !== null)).filter((it) => it >= 0));
  const length = lines[0]?.values.length ?? 0;
  const start = Number.isFinite(first) ? Math.max(0, Math.min(first, length - MIN_STEPS)) : 0;
  return lines.map((it) => ({ ...it, values: it.values.slice(start) }));
}

export function Curve(props: {
  title: string;
  lines: Line[];
  stepSeconds: number;
  format: (value: number | null) => string;
  integers?: boolean;
}) {
  const { title, stepSeconds, format } = props;
  const lines = trimmed(props.lines);
  const [at, setAt] = useState<number | null>(null);
  const figure = useRef<HTMLDivElement>(null);
  const length = lines[0]?.values.length ?? 0;
  const known = lines.flatMap((it) => it.values.filter((value): value is number => value !== null));
  const top = ceiling(Math.max(props.integers ? 4 : 0, ...known));
  const lastKnown = lines[0]?.values.findLastIndex((it) => it !== null) ?? -1;
  const index = at === null || at >= length ? lastKnown : at;
  const ago = (length - 1 - index) * stepSeconds;
  const move = (event: PointerEvent) => {
    const box = figure.current?.getBoundingClientRect();
    if (box && length > 1) {
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      setAt(Math.round(share * (length - 1)));
    }
  };
  const key = (event: KeyboardEvent) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    setAt(Math.min(length - 1, Math.max(0, index + by)));
  };
  const nowSeconds = Date.now() / 1000;
  const label = lines.map((it) => `${it.label} ${format(it.values[index] ?? null)}`).join(", ");
  return (
    <figure class="curve">
      <figcaption>
        <span class="curve-title">{title}</span>
        <span class="curve-time">{at === null ? "" : clock(nowSeconds - ago)}</span>
      </figcaption>
      <div class="legend">
        {lines.map((it) => (
          <span key={it.label} class={`key line-${it.colour}${it.isLimit ? " limit" : ""}`}>
            {it.label} <b>{index < 0 ? "–" : format(it.values[index] ?? null)}</b>
          </span>
        ))}
      </div>
      <div
        class="plot"
        ref={figure}
        tabIndex={0}
        role="img"
        aria-label={`${title}: ${index < 0 ? "no values yet" : label}`}
        onPointerMove={move}
        onPointerLeave={() => setAt(null)}
        onKeyDown={key}
        onBlur={() => setAt(null)}
      >
        <span class="axis-top">{format(top)}</span>
        <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
          <path class="grid" d={`M0 1H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 1}H${WIDTH}`} />
          {lines.map((it) => (
            <path key={it.label} class={`line line-${it.colour}${it.isLimit ? " limit" : ""}`} d={path(it.values, top)} />
          ))}
          {at !== null && length > 1 && (
            <path class="cursor" d={`M${(index / (length - 1)) * WIDTH} 0V${HEIGHT}`} />
          )}
        </svg>
      </div>
      <div class="axis" aria-hidden="true">
        <span>{clock(nowSeconds - length * stepSeconds)}</span>
        <span>{clock(nowSeconds - (length * stepSeconds) / 2)}</span>
        <span>now</span>
      </div>
    </figure>
  );
}

export function useHistory(range: Range, backend?: string): Answer<History> {
  const parameters: [string, string][] = [["range", range]];
  if (backend !== undefined) parameters.push(["backend", backend]);
  return usePolling<History>("history", range === "10m" ? 2500 : 15000, parameters);
}

export function RangeChoice({ range, choose }: { range: Range; choose: (range: Range) => void }) {
  const words = { "10m": "10 min", "2h": "2 h", "24h": "24 h" };
  return (
    <div class="choice" role="group" aria-label="Length of the curves">
      {RANGES.map((it) => (
        <button key={it} type="button" aria-pressed={it === range} onClick={() => choose(it)}>
          {words[it]}
        </button>
      ))}
    </div>
  );
}

const rate = (value: number | null) => count(value);

/** Curves of all requests, or of a backend, which has no durations. */
export function HistoryCurves({ answer, isBackend = false }: { answer: Answer<History>; isBackend?: boolean }) {
  return (
    <Loaded answer={answer} off="Curves are kept of the busiest 32 backends alone; this one is not among them.">
      {(history) => {
        const step = history.step_seconds;
        const slots = history.slots.some((it) => it !== null);
        const limit: Line[] = slots ? [{ label: "slots", values: history.slots, colour: 2, isLimit: true }] : [];
        return (
          <div class="curves">
            <Curve
              title="Requests per second"
              stepSeconds={step}
              format={rate}
              lines={[
                { label: "requests", values: history.requests_per_second, colour: 1 },
                { label: isBackend ? "failures" : "errors (5xx)", values: history.errors_per_second, colour: 3 },
                { label: "rejected", values: history.rejections_per_second, colour: 2 },
              ]}
            />
            {!isBackend && (
              <Curve
                title="Duration"
                stepSeconds={step}
                format={duration}
                lines={[
                  { label: "p50", values: history.p50_seconds, colour: 1 },
                  { label: "p99", values: history.p99_seconds, colour: 2 },
                ]}
              />
            )}
            <Curve
              title="In flight"
              stepSeconds={step}
              format={count}
              integers
              lines={[{ label: "in flight", values: history.in_flight, colour: 1 }, ...limit]}
            />
            <Curve
              title="Waiting in the queue"
              stepSeconds={step}
              format={count}
              integers
              lines={[{ label: "waiting, at most", values: history.waiting, colour: 1 }]}
            />
            {isBackend && (
              <Curve
                title="Endpoints"
                stepSeconds={step}
                format={count}
                integers
                lines={[{ label: "endpoints", values: history.endpoints, colour: 1 }]}
              />
            )}
          </div>
        );
      }}
    </Loaded>
  );
}

/** A small curve without axes: the values of the page's last answers. */
export function Sparkline({ values, limits, label }: { values: number[]; limits: (number | null)[]; label: string }) {
  const max = Math.max(1, ...values, ...limits.map((it) => it ?? 0));
  const points = (of: (number | null)[]) =>
    of
      .map((value, index) => ({ value, x: 100 - (of.length - 1 - index) * 2 }))
      .filter((it) => it.value !== null)
      .map((it, index) => `${index === 0 ? "M" : "L"}${it.x} ${(19 - (it.value! / max) * 18).toFixed(1)}`)
      .join("");
  return (
    <svg class="spark" viewBox="0 0 100 20" preserveAspectRatio="none" role="img" aria-label={label}>
      <path class="line line-2 limit" d={points(limits)} />
      <path class="line line-1" d={points(values)} />
    </svg>
  );
}
