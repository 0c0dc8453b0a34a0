import assert from 'node:assert/strict';
import { test } from 'node:test';

import { deviceWish, isPrivate } from '../privacy.js';

const TAGS = ['looseleaf-private', 'secret'];

test('a cell is private by its metadata, its tags or its notebook', () => {
  assert.equal(isPrivate({ looseleaf: { private: true } }, {}, TAGS), true);
  assert.equal(isPrivate({ tags: ['plot', 'secret'] }, {}, TAGS), true);
  assert.equal(isPrivate({}, { looseleaf: { private: true } }, TAGS), true);
});

test('no other cell is', () => {
  for (const metadata of [
    undefined,
    {},
    { tags: ['plot'] },
    { tags: 'secret' },
    { looseleaf: 1 },
    { looseleaf: null },
    { looseleaf: { private: 'no' } }
  ]) {
    assert.equal(isPrivate(metadata, undefined, TAGS), false);
  }
  assert.equal(isPrivate({ tags: ['secret'] }, {}, []), false);
});

test('only the devices that the kernel knows are wished for', () => {
  assert.equal(deviceWish({ looseleaf: { device: 'gpu' } }), 'gpu');
  assert.equal(deviceWish({ looseleaf: { device: 'tpu' } }), '');
  assert.equal(deviceWish(undefined), '');
});
