import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Settings, type Source } from '../settings.js';

const DEFAULTS = { enabled: true, debounce: 150, private: ['looseleaf-private'], footers: true };

/** What is stored, and how the storing goes. */
class FakeSource implements Source {
  composite: Source['composite'];
  readonly writes: unknown[] = [];
  fails: Error | null = null;
  /** Storing waits for it. */
  gate: Promise<void> = Promise.resolve();
  private _slot = () => {};

  readonly changed = {
    connect: (slot: () => void) => {
      this._slot = slot;
    }
  };

  constructor(set: Record<string, unknown> = {}) {
    this.composite = { ...DEFAULTS, ...set } as Source['composite'];
  }

  async set(key: string, value: unknown): Promise<void> {
    await this.gate;
    if (this.fails !== null) {
      throw this.fails;
    }
    this.writes.push(value);
    this.change({ [key]: value });
  }

  change(set: Record<string, unknown>): void {
    this.composite = { ...this.composite, ...set } as Source['composite'];
    this._slot();
  }
}

const of = (source: Source) => ({ load: async () => source });

/** Keeps what `enabled` was at each change. */
function rig() {
  const settings = new Settings();
  const seen: boolean[] = [];
  settings.changed.connect(() => {
    seen.push(settings.enabled);
  });
  return { settings, seen };
}

/** A promise that others wait for. */
function gate() {
  let open = () => {};
  const closed = new Promise<void>(resolve => {
    open = resolve;
  });
  return { closed, open };
}

test('no text is sent before the settings are there, and then as they say', async () => {
  for (const enabled of [true, false]) {
    const { settings } = rig();
    const { closed, open } = gate();
    const loaded = settings.load({ load: () => closed.then(() => new FakeSource({ enabled, private: ['mine'] })) }, 'p');
    assert.equal(settings.enabled, false);
    open();
    await loaded;
    assert.equal(settings.enabled, enabled);
    assert.deepEqual(settings.privateTags, ['mine']);
    assert.equal(settings.problem, '');
  }
});

test('settings without a word on the switch leave it off, and those without tags keep the usual one', async () => {
  const { settings } = rig();
  await settings.load(of(new FakeSource({ enabled: undefined, private: undefined })), 'p');
  assert.equal(settings.enabled, false);
  assert.deepEqual(settings.privateTags, ['looseleaf-private']);
});

test('settings that cannot be read keep all texts in the page, whatever the switch says, and are told', async () => {
  const wrong = [new Error('no server'), [{ message: 'must be boolean' }, { message: 'unknown key' }], 'odd', [], null];
  for (const error of wrong) {
    const { settings, seen } = rig();
    const loaded = settings.load({ load: () => Promise.reject(error) }, 'p');
    await settings.setEnabled(true);
    await loaded;
    await settings.setEnabled(true);
    assert.deepEqual([settings.enabled, settings.wanted, settings.unreadable], [false, false, true]);
    assert.ok(seen.length > 0 && !seen.includes(true));
    assert.match(settings.problem, /could not be read \(.+\)/);
  }
  const { settings } = rig();
  await settings.load({ load: () => Promise.reject(wrong[1]) }, 'p');
  assert.match(settings.problem, /must be boolean; unknown key/);
});

test('where there are no settings the defaults hold, and the switch for the page', async () => {
  const { settings } = rig();
  await settings.load(null, 'p');
  assert.equal(settings.enabled, true);
  await settings.setEnabled(false);
  assert.equal(settings.enabled, false);
  await settings.setEnabled(true);
  assert.equal(settings.enabled, true);
  assert.equal(settings.problem, '');
});

test('a choice made before the settings are there is stored when they are, and never undone', async () => {
  for (const choice of [true, false]) {
    const { settings, seen } = rig();
    const { closed, open } = gate();
    const source = new FakeSource({ enabled: !choice });
    const loaded = settings.load({ load: () => closed.then(() => source) }, 'p');
    await settings.setEnabled(choice);
    assert.deepEqual([settings.enabled, settings.wanted], [false, choice]);
    open();
    await loaded;
    assert.deepEqual(source.writes, [choice]);
    assert.equal(settings.enabled, choice);
    assert.ok(choice || !seen.includes(true));
  }
});

test('off holds at once and stays where it cannot be stored, which is told', async () => {
  const { settings, seen } = rig();
  const source = new FakeSource();
  await settings.load(of(source), 'p');
  seen.length = 0;
  source.fails = new Error('read-only');
  await settings.setEnabled(false);
  source.change({ debounce: 200 });
  assert.deepEqual([settings.enabled, settings.wanted, settings.debounceMs], [false, false, 200]);
  assert.ok(!seen.includes(true));
  assert.match(settings.problem, /could not be stored \(read-only\)/);
  source.change({ enabled: false });
  source.change({ enabled: true });
  assert.deepEqual([settings.enabled, settings.problem], [true, '']);
});

test('on that cannot be stored is not on, and told', async () => {
  const { settings, seen } = rig();
  const source = new FakeSource({ enabled: false });
  await settings.load(of(source), 'p');
  source.fails = new Error('read-only');
  await settings.setEnabled(true);
  assert.deepEqual([settings.enabled, settings.wanted], [false, false]);
  assert.ok(!seen.includes(true));
  assert.match(settings.problem, /it is not on/);
  source.fails = null;
  await settings.setEnabled(true);
  assert.deepEqual([settings.enabled, settings.problem], [true, '']);
});

test('of several choices the newest is stored last', async () => {
  const { settings, seen } = rig();
  const source = new FakeSource({ enabled: false });
  await settings.load(of(source), 'p');
  const { closed, open } = gate();
  source.gate = closed;
  const first = settings.setEnabled(true);
  const second = settings.setEnabled(false);
  open();
  await Promise.all([first, second]);
  assert.deepEqual(source.writes, [true, false]);
  assert.deepEqual([settings.enabled, settings.wanted], [false, false]);
  assert.ok(!seen.includes(true));
});
