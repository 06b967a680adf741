// Questions that are repeated while a view is open.

import { useEffect, useRef, useState } from "preact/hooks";
import { ask, RefusedQuestion, type Parameters } from "./api";

export interface Answer<T> {
  /** The newest answer, also while Sheave does not answer. */
  data: T | null;
  /** Time at which it arrived, in milliseconds of the page. */
  at: number;
  /** The reason why there is no newer one. */
  error: RefusedQuestion | null;
  /** Number of questions in a row without an answer. */
  failures: number;
}

/** Longest pause between two questions while Sheave does not answer. */
const MAX_PAUSE_MS = 5000;

/** Asks again after each answer and this pause, while the page is visible. */
export function usePolling<T>(path: string | null, pauseMs: number, parameters: Parameters = []): Answer<T> {
  const empty: Answer<T> = { data: null, at: 0, error: null, failures: 0 };
  const [answer, setAnswer] = useState<Answer<T>>(empty);
  const key = JSON.stringify([path, parameters]);
  const shown = useRef(key);
  useEffect(() => {
    if (path === null) return;
    if (shown.current !== key) {
      shown.current = key;
      setAnswer(empty);
    }
    let timer = 0;
    let failures = 0;
    let isOver = false;
    const again = (pause: number) => {
      timer = window.setTimeout(next, pause);
    };
    const next = async () => {
      if (document.hidden) return;
      try {
        const data = await ask<T>(path, parameters);
        if (isOver) return;
        failures = 0;
        setAnswer({ data, at: performance.now(), error: null, failures });
        again(pauseMs);
      } catch (error) {
        if (isOver) return;
        const isRefused = error instanceof RefusedQuestion;
        failures += isRefused && error.status < 500 ? 0 : 1;
        setAnswer((last) => ({ ...last, error: isRefused ? error : null, failures }));
        again(Math.min(MAX_PAUSE_MS, Math.max(pauseMs, 500 * 2 ** Math.min(failures, 4))));
      }
    };
    const onShow = () => {
      window.clearTimeout(timer);
      void next();
    };
    document.addEventListener("visibilitychange", onShow);
    void next();
    return () => {
      isOver = true;
      window.clearTimeout(timer);
      document.removeEventListener("visibilitychange", onShow);
    };
  }, [key, pauseMs]);
  return shown.current === key ? answer : empty;
}

/** Returns the last values of something that changes with each answer, the newest last. */
export function useTrail<T>(value: T, at: number, length: number): T[] {
  const trail = useRef<{ at: number; values: T[] }>({ at: 0, values: [] });
  if (at !== trail.current.at) {
    trail.current = { at, values: [...trail.current.values, value].slice(-length) };
  }
  return trail.current.values;
}
