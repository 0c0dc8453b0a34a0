// The person's settings, as one object that others look at.

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Signal } from '@lumino/signaling';

/** See schema/plugin.json. */
export class Settings {
  enabled = true;
  debounceMs = 150;
  privateTags: readonly string[] = ['looseleaf-private'];
  footers = true;

  readonly changed = new Signal<this, void>(this);

  /** Follows what the person has set; until then, and where no settings are to be had, the defaults hold. */
  follow(source: ISettingRegistry.ISettings): void {
    this._source = source;
    const read = () => {
      const set = source.composite as Record<string, unknown>;
      this.enabled = set['enabled'] !== false;
      this.footers = set['footers'] !== false;
      const ms = set['debounce'];
      this.debounceMs = typeof ms === 'number' ? ms : 150;
      const tags = set['private'];
      this.privateTags = Array.isArray(tags) ? tags.map(String) : [];
      this.changed.emit();
    };
    source.changed.connect(read);
    read();
  }

  /** The one switch: whether texts are sent before Run. */
  async setEnabled(value: boolean): Promise<void> {
    this.enabled = value;
    this.changed.emit();
    await this._source?.set('enabled', value);
  }

  private _source: ISettingRegistry.ISettings | null = null;
}
