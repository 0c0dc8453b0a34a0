// Texts of states and reports: pure, so that they are tested without a page.

import type { IReport, IState } from './protocol';

const MIB = 1 << 20;
const BYTES_SHOWN_MIN = MIB / 10;

/** Such as "0.4 s" or "12 s". */
export function seconds(value: number): string {
  return value < 10 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`;
}

/** Such as "31 ms" or, from a tenth of a second on, as `seconds`. */
export function duration(ms: number): string {
  return ms < 100 ? `${Math.round(ms)} ms` : seconds(ms / 1000);
}

/** Such as "12 MB"; one digit more below 10. */
export function megabytes(bytes: number): string {
  const value = bytes / MIB;
  return value < 10 ? `${value.toFixed(1)} MB` : `${Math.round(value)} MB`;
}

function device(state: IState): string {
  return typeof state.gpu === 'number' ? ` · GPU ${state.gpu}` : '';
}

/** The state as one short line. `forS`: how long it has lasted, in seconds. */
export function stateLabel(state: IState, forS: number): string {
  switch (state.state) {
    case 'preparing':
      return `preparing ${seconds(forS)}`;
    case 'ready':
      return typeof state.prepare_ms === 'number' && state.prepare_ms > 0
        ? `ready (${seconds(state.prepare_ms / 1000)})`
        : 'ready';
    case 'queued':
      return typeof state.position === 'number' && state.position > 0
        ? `queued #${state.position}`
        : 'queued';
    case 'running':
      return `running ${seconds(forS)}${device(state)}`;
    case 'saving':
      return 'saving';
    case 'held':
      return `held by ${state.reason || 'what a cell left running'}`;
    case 'lost':
      return 'worker lost';
    case 'offline':
      return 'offline (CPU only)';
    case 'disconnected':
      return 'no connection to the kernel';
    case 'released':
      return 'released';
    default:
      return String((state as { state: unknown }).state);
  }
}

/**
 * What a screen reader says of a new state, without figures that grow. Empty for what comes and goes while somebody
 * types, and for what a cell's own output tells.
 */
export function spokenLabel(state: IState): string {
  if (state.state === 'running') {
    return `GPU: running${device(state)}`;
  }
  if (!['queued', 'held', 'lost', 'offline', 'disconnected'].includes(state.state)) {
    return '';
  }
  const reason = stateReason(state);
  return `GPU: ${stateLabel(state, 0)}${reason ? `, ${reason}` : ''}`;
}

/** Whether the label of this state grows with time. */
export function counts(state: IState): boolean {
  return state.state === 'preparing' || state.state === 'running';
}

/** Why it is so, empty if the label says it all. */
export function stateReason(state: IState): string {
  return state.state === 'held' ? '' : state.reason || '';
}

/** The line under a cell that has run; empty for a cell of the CPU. */
export function reportLabel(report: IReport): string {
  if (report.path === 'cpu' || !report.path) {
    return '';
  }
  const parts: string[] = [];
  const add = (name: string, ms: number | null | undefined) => {
    if (typeof ms === 'number') {
      parts.push(`${name} ${duration(ms)}`);
    }
  };
  add('prepared', report.prepare_ms);
  if (typeof report.run_s === 'number') {
    parts.push(`run ${duration(report.run_s * 1000)}`);
  }
  add('saved', report.save_ms);
  if (report.bytes_moved && report.bytes_moved >= BYTES_SHOWN_MIN) {
    parts.push(`${megabytes(report.bytes_moved)} moved`);
  }
  const place = typeof report.gpu === 'number' ? `GPU ${report.gpu}` : 'GPU';
  return `${place} (${report.path}): ${parts.join(' · ')}`;
}
