import assert from 'node:assert/strict';
import { test } from 'node:test';

import { counts, duration, megabytes, reportLabel, seconds, spokenLabel, stateLabel, stateReason } from '../labels.js';
import type { IState } from '../protocol.js';

test('numbers are short', () => {
  assert.equal(duration(31.4), '31 ms');
  assert.equal(duration(412), '0.4 s');
  assert.equal(seconds(0.42), '0.4 s');
  assert.equal(seconds(12.4), '12 s');
  assert.equal(megabytes(12 * 1024 * 1024), '12 MB');
  assert.equal(megabytes(1024 * 1024 * 0.5), '0.5 MB');
});

const LABELS: [IState, string][] = [
  [{ state: 'released' }, 'released'],
  [{ state: 'preparing' }, 'preparing 0.4 s'],
  [{ state: 'ready' }, 'ready'],
  [{ state: 'ready', prepare_ms: 380 }, 'ready (0.4 s)'],
  [{ state: 'queued', position: 3, reason: 'no free GPU' }, 'queued #3'],
  [{ state: 'queued' }, 'queued'],
  [{ state: 'running', gpu: 0, host: 'h0' }, 'running 0.4 s · GPU 0'],
  [{ state: 'saving' }, 'saving'],
  [{ state: 'held', reason: "background thread 'T'" }, "held by background thread 'T'"],
  [{ state: 'lost', reason: 'killed' }, 'worker lost'],
  [{ state: 'offline', reason: 'nobody answers' }, 'offline (CPU only)'],
  [{ state: 'disconnected', reason: 'the connection is lost' }, 'no connection to the kernel']
];

for (const [state, text] of LABELS) {
  test(`the state ${JSON.stringify(state)} has a label`, () => {
    assert.equal(stateLabel(state, 0.4), text);
  });
}

test('a state of a newer kernel is shown by its name', () => {
  assert.equal(stateLabel({ state: 'moved' } as unknown as IState, 0), 'moved');
});

test('only labels that tell a time grow', () => {
  const growing = LABELS.map(([state]) => state).filter(counts);
  assert.deepEqual([...new Set(growing.map(({ state }) => state))], ['preparing', 'running']);
});

test('the reason is told where the label does not have it', () => {
  assert.equal(stateReason({ state: 'queued', reason: 'no free GPU' }), 'no free GPU');
  assert.equal(stateReason({ state: 'held', reason: 'a thread' }), '');
  assert.equal(stateReason({ state: 'released' }), '');
});

test('a GPU cell has a line with its times, a CPU cell none', () => {
  const report = {
    path: 'prepared', prepare_ms: 412.3, run_s: 2.04, save_ms: 31, bytes_moved: 2097152, gpu: 1
  };
  assert.equal(reportLabel(report), 'GPU 1 (prepared): prepared 0.4 s · run 2.0 s · saved 31 ms · 2.0 MB moved');
  assert.equal(reportLabel({ path: 'warm', prepare_ms: null, run_s: 1 }), 'GPU (warm): run 1.0 s');
  assert.equal(reportLabel({ path: 'warm', run_s: 1, bytes_moved: 900 }), 'GPU (warm): run 1.0 s');
  assert.equal(reportLabel({ path: 'cpu', run_s: 1 }), '');
  assert.equal(reportLabel({}), '');
});

test('a screen reader is told what concerns a run, without times that grow', () => {
  assert.equal(spokenLabel({ state: 'running', gpu: 0 }), 'GPU: running · GPU 0');
  assert.equal(spokenLabel({ state: 'queued', position: 3, reason: 'no free GPU' }), 'GPU: queued #3, no free GPU');
  assert.equal(spokenLabel({ state: 'lost' }), 'GPU: worker lost');
  assert.equal(spokenLabel({ state: 'held', reason: 'a thread' }), 'GPU: held by a thread');
  const lost = spokenLabel({ state: 'disconnected', reason: 'the connection is lost' });
  assert.equal(lost, 'GPU: no connection to the kernel, the connection is lost');
  for (const state of ['preparing', 'ready', 'saving', 'released'] as const) {
    assert.equal(spokenLabel({ state, prepare_ms: 3 }), '');
  }
});
