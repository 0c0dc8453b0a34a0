// The line "GPU: …" of the status bar, or of the notebook's toolbar where there is no status bar.

import { Widget } from '@lumino/widgets';

import { counts, spokenLabel, stateLabel, stateReason } from './labels';
import type { NotebookWatch } from './notebookWatch';
import { Details } from './details';
import type { Settings } from './settings';

/** How often a label that grows with time is written anew. */
const TICK_MS = 200;

/** Shows the state of the notebook that `watch` names; hidden for other kernels. A click opens the details. */
export class StateView extends Widget {
  constructor(private readonly _settings: Settings) {
    super();
    this.addClass('ll-State');
    this._button.type = 'button';
    this._button.setAttribute('aria-haspopup', 'dialog');
    this._button.setAttribute('aria-expanded', 'false');
    this._button.addEventListener('click', () => this._toggleDetails());
    this._spoken.className = 'll-Spoken';
    this._spoken.setAttribute('role', 'status');
    this.node.append(this._button, this._spoken);
    _settings.changed.connect(this._show, this);
    this._show();
  }

  set watch(watch: NotebookWatch | null) {
    this._watch?.changed.disconnect(this._show, this);
    this._watch = watch;
    watch?.changed.connect(this._show, this);
    this._show();
  }

  override dispose(): void {
    this.watch = null;
    this._settings.changed.disconnect(this._show, this);
    this._details?.dispose();
    this._stopTicking();
    super.dispose();
  }

  private _show(): void {
    const watch = this._watch;
    const state = watch?.state ?? null;
    this.setHidden(state === null);
    if (watch === null || state === null) {
      this._stopTicking();
      return;
    }
    const forS = Math.max(0, performance.now() - watch.sinceMs) / 1000;
    const edits = this._settings.enabled ? '' : ' · edits stay here';
    this._button.textContent = `GPU: ${stateLabel(state, forS)}${edits}`;
    this._button.title = stateReason(state) || 'LooseLeaf: click for details';
    this.node.dataset['state'] = state.state;
    const spoken = spokenLabel(state);
    // The same text written again would be said again.
    if (this._spoken.textContent !== spoken) {
      this._spoken.textContent = spoken;
    }
    if (counts(state) && this._timer === null) {
      this._timer = setInterval(() => this._show(), TICK_MS);
    } else if (!counts(state)) {
      this._stopTicking();
    }
  }

  private _toggleDetails(): void {
    if (this._details !== null && !this._details.isDisposed) {
      this._details.dispose();
    } else if (this._watch !== null) {
      this._details = new Details(this._watch, this._settings);
      this._button.setAttribute('aria-expanded', 'true');
      this._details.disposed.connect(() => this._button.setAttribute('aria-expanded', 'false'));
      this._details.open(this._button);
    }
  }

  private _stopTicking(): void {
    if (this._timer !== null) {
      clearInterval(this._timer);
      this._timer = null;
    }
  }

  private readonly _button = document.createElement('button');
  private readonly _spoken = document.createElement('span');
  private _watch: NotebookWatch | null = null;
  private _details: Details | null = null;
  private _timer: ReturnType<typeof setInterval> | null = null;
}
