// The person's settings, as one object that others look at.

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Signal } from '@lumino/signaling';

/** What of a registry, and of a plugin's settings in it, is used here. */
export type Source = Pick<ISettingRegistry.ISettings, 'composite' | 'set'> & {
  changed: { connect(slot: () => void): unknown };
};
export interface IRegistry {
  load(plugin: string): Promise<Source>;
}

const PRIVATE_TAGS: readonly string[] = ['looseleaf-private'];

// A registry rejects with a list of what is wrong.
function reasonOf(error: unknown): string {
  const errors: unknown[] = Array.isArray(error) ? error : [error];
  const texts = errors.map(one => (one as { message?: unknown } | null)?.message ?? one);
  return texts.map(String).join('; ') || 'no reason was given';
}

/**
 * See schema/plugin.json. Fails closed: `enabled` is false until it is known that the person has not switched it off.
 * Off holds at once, also where it cannot be stored; on holds when it is stored.
 */
export class Settings {
  debounceMs = 150;
  privateTags = PRIVATE_TAGS;
  footers = true;

  readonly changed = new Signal<this, void>(this);

  /** The one switch: whether texts are sent before Run. */
  get enabled(): boolean {
    return this._stored && this._choice !== false;
  }

  /** What the person wants of it: differs from `enabled` while that is not stored yet. */
  get wanted(): boolean {
    return this._choice ?? this._stored;
  }

  /** Whether the settings could not be read: nothing is sent, whatever the switch says. */
  get unreadable(): boolean {
    return this._unreadable;
  }

  /** What is wrong with the settings, in words; empty if nothing is. */
  get problem(): string {
    return this._problem;
  }

  /** Follows what the person has set. The defaults hold where there is no registry. Never rejects. */
  async load(registry: IRegistry | null, plugin: string): Promise<void> {
    if (registry === null) {
      this._standalone = true;
      this._stored = this._choice ?? true;
      this._choice = null;
      this.changed.emit();
      return;
    }
    try {
      await this._follow(await registry.load(plugin));
    } catch (error) {
      this._unreadable = true;
      this._stored = false;
      this._choice = null;
      this._problem =
        `The settings could not be read (${reasonOf(error)}): ` +
        'no text is sent before Run. Mend them and load the page again.';
      this.changed.emit();
    }
  }

  /** Sets the switch and stores it; what is chosen before the settings are there is stored then. Never rejects. */
  async setEnabled(value: boolean): Promise<void> {
    if (this._standalone) {
      this._stored = value;
    } else if (!this._unreadable) {
      this._choice = value;
      this._problem = '';
    }
    this.changed.emit();
    await this._store();
  }

  private async _follow(source: Source): Promise<void> {
    this._source = source;
    this._read(source, false);
    source.changed.connect(() => this._read(source, true));
    await this._store();
  }

  // `changed`: the settings have changed since they were read last.
  private _read(source: Source, changed: boolean): void {
    const set = source.composite as Record<string, unknown>;
    this._stored = set['enabled'] === true;
    this.footers = set['footers'] !== false;
    const ms = set['debounce'];
    this.debounceMs = typeof ms === 'number' ? ms : 150;
    const tags = set['private'];
    this.privateTags = Array.isArray(tags) ? tags.map(String) : PRIVATE_TAGS;
    if (!this._storing && this._choice === this._stored) {
      this._choice = null;
    }
    if (changed && !this._storing && this._choice === null) {
      this._problem = '';
    }
    this.changed.emit();
  }

  // One at a time, until the newest choice is stored.
  private async _store(): Promise<void> {
    const source = this._source;
    if (source === null || this._storing || this._choice === null) {
      return;
    }
    this._storing = true;
    let value: boolean | null = null;
    while (this._choice !== null && this._choice !== value) {
      value = this._choice;
      try {
        await source.set('enabled', value);
      } catch (error) {
        if (this._choice === value) {
          const holds = value ? 'it is not on.' : 'it is off until this page is loaded again.';
          this._problem = `The switch could not be stored (${reasonOf(error)}): ${holds}`;
          this._choice = value ? null : value;
        }
      }
    }
    this._storing = false;
    this._read(source, false);
  }

  private _source: Source | null = null;
  private _standalone = false;
  private _unreadable = false;
  private _problem = '';
  private _stored = false;
  // What the person chose in this page, until it is stored.
  private _choice: boolean | null = null;
  private _storing = false;
}
