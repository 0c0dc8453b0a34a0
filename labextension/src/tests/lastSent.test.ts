import assert from 'node:assert/strict';
import { test } from 'node:test';

import { LastSent, Reconnects } from '../lastSent.js';
import type { IReply } from '../protocol.js';

/** An answer that comes when told. */
function pending() {
  let resolve: (reply: IReply) => void = () => {};
  let reject: (error: Error) => void = () => {};
  const answer = new Promise<IReply>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { answer, resolve, reject };
}

const OK: IReply = { status: 'ok' };
const REFUSED: IReply = { status: 'error', ename: 'NO_CLUSTER', evalue: 'nobody answers' };

test('a text is remembered unless it was refused or its answer was lost', async () => {
  const cases: [Promise<IReply>, string, string][] = [
    [Promise.resolve(OK), 'text', ''],
    [Promise.resolve(REFUSED), '', 'nobody answers'],
    [Promise.reject(new Error('the kernel did not answer')), '', '']
  ];
  for (const [answer, text, refusal] of cases) {
    const last = new LastSent();
    last.refusal = 'an old one';
    last.text = 'text';
    await last.follow(answer);
    assert.deepEqual([last.text, last.refusal], [text, refusal]);
  }
});

test('of answers that overtake one another, and of a kernel that is gone, only the newest counts', async () => {
  for (const settle of ['refuse', 'lose'] as const) {
    const last = new LastSent();
    const old = pending();
    last.text = 'old';
    const first = last.follow(old.answer);
    last.text = 'new';
    await last.follow(Promise.resolve(OK));
    if (settle === 'refuse') {
      old.resolve(REFUSED);
    } else {
      old.reject(new Error('lost'));
    }
    await first;
    assert.deepEqual([last.text, last.refusal], ['new', '']);
  }
  const last = new LastSent();
  const gone = pending();
  const answered = last.follow(gone.answer);
  last.forget();
  gone.resolve(REFUSED);
  await answered;
  assert.deepEqual([last.text, last.refusal], ['', '']);
});

test('a connection is lost, and comes back, only if there was one before', () => {
  const cases: [string, string[], boolean[]][] = [
    ['connecting', ['connected'], [false]],
    ['disconnected', ['connecting', 'connected'], [false, false]],
    ['connected', ['connected'], [false]],
    ['connected', ['connecting', 'connected'], [false, true]],
    ['connected', ['connecting', 'disconnected', 'connecting', 'connected', 'connected'], [false, false, false, true, false]],
    ['connecting', ['connected', 'disconnected', 'connected', 'connecting', 'connected'], [false, false, true, false, true]]
  ];
  for (const [at, statuses, back] of cases) {
    const reconnects = new Reconnects(at);
    let had = at === 'connected';
    statuses.forEach((status, number) => {
      assert.equal(reconnects.seen(status), back[number]);
      assert.equal(reconnects.lost, had && status !== 'connected');
      had = had || status === 'connected';
    });
  }
});
