import assert from 'node:assert/strict';
import { test } from 'node:test';

import { isState, refusalOf } from '../protocol.js';

test('a person is told why a GPU cell was not prepared, and of no other cell', () => {
  assert.equal(refusalOf({ status: 'error', ename: 'NO_CLUSTER', evalue: 'nobody answers' }), 'nobody answers');
  assert.equal(refusalOf({ status: 'error', ename: 'BUG' }), 'BUG');
  assert.equal(refusalOf({ status: 'ok', recipe: { label: 'gpu' }, skipped_reason: 'no room' }), 'no room');
  assert.equal(refusalOf({ status: 'ok', recipe: { label: 'cpu' }, skipped_reason: 'needs no worker' }), '');
  assert.equal(refusalOf({ status: 'ok', recipe: { label: 'gpu' }, skipped_reason: '' }), '');
  assert.equal(refusalOf({ status: 'ok' }), '');
});

test('only what names a state is one', () => {
  assert.equal(isState({ state: 'ready' }), true);
  for (const value of [null, undefined, 'ready', {}, { state: 1 }]) {
    assert.equal(isState(value), false);
  }
});
