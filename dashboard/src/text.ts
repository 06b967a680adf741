// Text that others have written: object names, messages, values of fields.

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Returns the text with its control characters, direction marks and other invisible characters as escapes. */
export function visible(text: string): string {
  return text.replace(HIDDEN, (it) => `\\u{${it.codePointAt(0)!.toString(16)}}`);
}

const DASH = "–";

/** Formats a number with three significant digits, such as 0.12, 4.5, 1.2k. */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined) return DASH;
  if (value >= 1e6) return `${short(value / 1e6)}M`;
  if (value >= 1e4) return `${short(value / 1e3)}k`;
  if (Number.isInteger(value)) return String(value);
  return short(value);
}

function short(value: number): string {
  if (value === 0) return "0";
  if (value >= 100) return value.toFixed(0);
  if (value >= 10) return value.toFixed(1).replace(/\.0$/, "");
  if (value >= 0.1) return value.toFixed(1);
  return value < 0.01 ? "<0.01" : value.toFixed(2);
}

/** Formats a duration in the unit that fits. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return DASH;
  if (seconds === 0) return "0 ms";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${short(seconds * 1000)} ms`;
  if (seconds < 120) return `${short(seconds)} s`;
  return span(seconds);
}

/** Formats a long time in its two largest units. */
export function span(seconds: number): string {
  const units: [number, string][] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = units.findIndex(([length]) => seconds >= length);
  if (first < 0) return "0 s";
  const [length, name] = units[first]!;
  const whole = Math.floor(seconds / length);
  const next = units[first + 1];
  const rest = next ? Math.floor((seconds - whole * length) / next[0]) : 0;
  return next && rest > 0 && whole < 10 ? `${whole} ${name} ${rest} ${next[1]}` : `${whole} ${name}`;
}

export function bytes(value: number): string {
  return value >= 1 << 30 ? `${short(value / (1 << 30))} GiB` : `${short(value / (1 << 20))} MiB`;
}

export function percent(share: number): string {
  if (!Number.isFinite(share)) return DASH;
  return share > 0 && share < 0.01 ? "<1 %" : `${Math.round(share * 100)} %`;
}

/** Formats a time of day, or a date if it is of another day. */
export function clock(seconds: number, withDate = false): string {
  const time = new Date(seconds * 1000);
  const date = time.toISOString().slice(0, 10);
  const day = `${String(time.getHours()).padStart(2, "0")}:${String(time.getMinutes()).padStart(2, "0")}`;
  return withDate ? date : day;
}

export function plural(number: number, one: string, many = `${one}s`): string {
  return `${count(number)} ${number === 1 ? one : many}`;
}
