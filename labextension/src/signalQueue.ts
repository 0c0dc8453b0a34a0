// When signals are sent: the newest wins, at most one is on its way, edits wait for a pause in the typing.

/** Time, passed in so that tests decide it. */
export interface ITimers {
  nowMs(): number;
  set(call: () => void, ms: number): unknown;
  clear(handle: unknown): void;
}

export const browserTimers: ITimers = {
  nowMs: () => performance.now(),
  set: (call, ms) => setTimeout(call, ms),
  clear: handle => clearTimeout(handle as ReturnType<typeof setTimeout>)
};

/** Makes the signal when it is sent, so that it has the newest text; null: there is nothing to send any more. */
export type Make<S> = () => S | null;

/** Somebody who types without a pause is prepared for all the same. */
export const WAIT_MS_MAX = 1000;

/**
 * Sends signals one at a time. `send` resolves when the kernel has answered and rejects when it cannot; either way the
 * next signal may go.
 */
export class SignalQueue<S> {
  constructor(
    private readonly _send: (signal: S) => Promise<unknown>,
    private readonly _timers: ITimers = browserTimers
  ) {}

  /** Sends it as soon as nothing is on its way; whatever waited before is forgotten. */
  now(make: Make<S>): void {
    this._stopWaiting();
    this._next = make;
    this._pump();
  }

  /** Sends it after a pause of `ms` in which neither `now` nor `later` is called, or after `WAIT_MS_MAX` of typing. */
  later(make: Make<S>, ms: number): void {
    const nowMs = this._timers.nowMs();
    const sinceMs = this._timer === null ? nowMs : this._waitingSinceMs;
    this._stopWaiting();
    this._waitingSinceMs = sinceMs;
    const leftMs = Math.max(0, sinceMs + WAIT_MS_MAX - nowMs);
    this._timer = this._timers.set(
      () => {
        this._timer = null;
        this.now(make);
      },
      Math.min(ms, leftMs)
    );
  }

  /** Forgets what waits and what is on its way: the kernel that would have answered is gone. */
  reset(): void {
    this._stopWaiting();
    this._next = null;
    this._flight = null;
  }

  private _pump(): void {
    if (this._flight !== null || this._next === null) {
      return;
    }
    const signal = this._next();
    this._next = null;
    if (signal === null) {
      return;
    }
    const flight = {};
    this._flight = flight;
    const landed = () => {
      if (this._flight === flight) {
        this._flight = null;
        this._pump();
      }
    };
    this._send(signal).then(landed, landed);
  }

  private _stopWaiting(): void {
    if (this._timer !== null) {
      this._timers.clear(this._timer);
      this._timer = null;
    }
  }

  private _next: Make<S> | null = null;
  private _flight: object | null = null;
  private _timer: unknown = null;
  private _waitingSinceMs = 0;
}
