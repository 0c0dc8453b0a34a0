import assert from 'node:assert/strict';
import { test } from 'node:test';

import { SignalQueue, WAIT_MS_MAX, type ITimers } from '../signalQueue.js';

/** Time that passes only when told. */
class FakeTime implements ITimers {
  private _nowMs = 0;
  private _next = 0;
  private readonly _calls = new Map<number, { atMs: number; call: () => void }>();

  nowMs(): number {
    return this._nowMs;
  }

  set(call: () => void, ms: number): unknown {
    this._calls.set(++this._next, { atMs: this._nowMs + ms, call });
    return this._next;
  }

  clear(handle: unknown): void {
    this._calls.delete(handle as number);
  }

  pass(ms: number): void {
    const endMs = this._nowMs + ms;
    for (;;) {
      const due = [...this._calls].filter(([, { atMs }]) => atMs <= endMs).sort((a, b) => a[1].atMs - b[1].atMs)[0];
      if (due === undefined) {
        break;
      }
      this._nowMs = due[1].atMs;
      this._calls.delete(due[0]);
      due[1].call();
    }
    this._nowMs = endMs;
  }
}

/** A queue whose kernel answers when told. */
function rig() {
  const time = new FakeTime();
  const sent: string[] = [];
  const answers: { resolve: () => void; reject: (error: Error) => void }[] = [];
  const queue = new SignalQueue<string>(signal => {
    sent.push(signal);
    return new Promise<void>((resolve, reject) => answers.push({ resolve, reject }));
  }, time);
  const settle = () => new Promise<void>(resolve => setImmediate(resolve));
  return { time, sent, answers, queue, settle };
}

test('an edit is sent after a pause in the typing, with the newest text', () => {
  const { time, sent, queue } = rig();
  let text = 'a';
  queue.later(() => text, 150);
  time.pass(149);
  text = 'ab';
  queue.later(() => text, 150);
  time.pass(149);
  assert.deepEqual(sent, []);
  text = 'abc';
  time.pass(1);
  assert.deepEqual(sent, ['abc']);
});

test('typing without a pause is sent all the same', () => {
  const { time, sent, queue } = rig();
  for (let ms = 0; ms < WAIT_MS_MAX; ms += 100) {
    queue.later(() => 'typed', 150);
    time.pass(100);
  }
  assert.deepEqual(sent, ['typed']);
});

test('a focus or paste is sent at once and takes the place of an edit that waits', () => {
  const { time, sent, queue } = rig();
  queue.later(() => 'edit', 150);
  queue.now(() => 'paste');
  time.pass(WAIT_MS_MAX);
  assert.deepEqual(sent, ['paste']);
});

test('one is on its way at most, and of those that wait the newest is sent', async () => {
  const { sent, answers, queue, settle } = rig();
  for (const signal of ['a', 'b', 'c']) {
    queue.now(() => signal);
  }
  assert.deepEqual(sent, ['a']);
  answers[0].resolve();
  await settle();
  assert.deepEqual(sent, ['a', 'c']);
});

test('an answer that fails lets the next one go', async () => {
  const { sent, answers, queue, settle } = rig();
  queue.now(() => 'a');
  queue.now(() => 'b');
  answers[0].reject(new Error('no kernel'));
  await settle();
  assert.deepEqual(sent, ['a', 'b']);
});

test('a signal that is not to be sent any more is passed over', () => {
  const { sent, queue } = rig();
  queue.now(() => null);
  queue.now(() => 'b');
  assert.deepEqual(sent, ['b']);
});

test('a reset forgets what waits and what is on its way, for good', async () => {
  const { time, sent, answers, queue, settle } = rig();
  queue.now(() => 'old');
  queue.now(() => 'waits');
  queue.later(() => 'typed', 150);
  queue.reset();
  time.pass(WAIT_MS_MAX);
  assert.deepEqual(sent, ['old']);
  queue.now(() => 'new');
  queue.now(() => 'newer');
  answers[0].resolve();
  await settle();
  assert.deepEqual(sent, ['old', 'new']);
});
