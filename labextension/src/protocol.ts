// The messages between page and kernel. The kernel's side: looseleaf/kernel/edit_signals.py, gpu_state.py and report.py.

export const IMPLEMENTATION = 'looseleaf';
export const REQUEST_TYPE = 'looseleaf_prepare_request';
export const VERSION = 1;
/** Longer texts are prepared for when they are run; the kernel would refuse them. */
export const SOURCE_CHARS_MAX = 1 << 20;

export type Kind = 'edit' | 'focus' | 'paste' | 'idle' | 'blur';

/** What the page says of one cell; `idle` and `blur` carry no text. */
export interface ISignal {
  kind: Kind;
  cell_id: string;
  source: string;
  device_override: string;
}

/** What the kernel says of the session's GPU. */
export interface IState {
  /** How many changes there were: answers and pushes travel apart, and an older one must not win. */
  change?: number;
  state:
    | 'released'
    | 'preparing'
    | 'ready'
    | 'queued'
    | 'running'
    | 'saving'
    | 'held'
    | 'lost'
    | 'offline'
    // Told by no kernel: the page itself knows of none that it could ask.
    | 'disconnected';
  cell_id?: string;
  reason?: string | null;
  position?: number | null;
  prepare_ms?: number | null;
  gpu?: number | null;
  host?: string | null;
}

/** The kernel's answer to a signal. */
export interface IReply {
  status: 'ok' | 'error';
  state?: IState;
  skipped_reason?: string;
  recipe?: { label?: string };
  ename?: string;
  evalue?: string;
}

/** The figures of one run, from the metadata of its execute_reply. */
export interface IReport {
  label?: string;
  path?: string;
  prepare_ms?: number | null;
  start_ms?: number | null;
  run_s?: number | null;
  save_ms?: number | null;
  bytes_moved?: number;
  gpu?: number | null;
  host?: string | null;
}

/** Why a cell that needs a GPU was not prepared; empty if it was, or needs none. */
export function refusalOf(reply: IReply): string {
  if (reply.status === 'error') {
    return reply.evalue || reply.ename || 'the kernel gave no reason';
  }
  return reply.recipe?.label === 'gpu' ? (reply.skipped_reason ?? '') : '';
}

/** Whether this is a state; the kernel may be newer than the page. */
export function isState(value: unknown): value is IState {
  return (
    typeof value === 'object' &&
    value !== null &&
    typeof (value as IState).state === 'string'
  );
}
