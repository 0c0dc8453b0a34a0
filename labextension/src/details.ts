// What a click on the state shows: the state in words, the last run, the privacy switch.

import { Widget } from '@lumino/widgets';

import { reportLabel, stateLabel, stateReason } from './labels';
import type { NotebookWatch } from './notebookWatch';
import type { Settings } from './settings';

function line(text: string): HTMLElement {
  const node = document.createElement('div');
  node.textContent = text;
  return node;
}

/** A popup; follows the notebook while it is open. */
export class Details extends Widget {
  constructor(
    private readonly _watch: NotebookWatch,
    private readonly _settings: Settings
  ) {
    super();
    this.addClass('ll-Details');
    this.node.setAttribute('role', 'dialog');
    this.node.setAttribute('aria-label', 'LooseLeaf: the GPU of this notebook');
    const label = document.createElement('label');
    this._switch.type = 'checkbox';
    this._switch.addEventListener('change', () => {
      void _settings.setEnabled(this._switch.checked);
    });
    label.append(this._switch, ' Prepare cells before Run: sends the text of the cell being edited to the kernel');
    this.node.append(this._text, label);
    _watch.changed.connect(this._show, this);
    _settings.changed.connect(this._show, this);
    this._show();
  }

  /** Shows it beside `anchor`, where there is room, until Escape, which goes back to `anchor`, or a click elsewhere. */
  open(anchor: HTMLElement): void {
    Widget.attach(this, document.body);
    const place = anchor.getBoundingClientRect();
    const below = place.top < window.innerHeight / 2;
    this.node.style[below ? 'top' : 'bottom'] = `${below ? place.bottom : window.innerHeight - place.top}px`;
    this.node.style.left = `${Math.max(0, Math.min(place.left, window.innerWidth - this.node.offsetWidth))}px`;
    this._closer = event => {
      const inside = event.target instanceof Node && (this.node.contains(event.target) || anchor.contains(event.target));
      if (event instanceof KeyboardEvent) {
        if (event.key === 'Escape') {
          anchor.focus();
          this.dispose();
        }
      } else if (!inside) {
        this.dispose();
      }
    };
    document.addEventListener('click', this._closer);
    document.addEventListener('keydown', this._closer);
    this._switch.focus();
  }

  override dispose(): void {
    if (this._closer !== null) {
      document.removeEventListener('click', this._closer);
      document.removeEventListener('keydown', this._closer);
      this._closer = null;
    }
    this._watch.changed.disconnect(this._show, this);
    this._settings.changed.disconnect(this._show, this);
    super.dispose();
  }

  private _show(): void {
    this._switch.checked = this._settings.wanted;
    this._switch.disabled = this._settings.unreadable;
    const problem = this._settings.problem;
    const state = this._watch.state;
    if (state === null) {
      const texts = ['This notebook has no LooseLeaf kernel.', problem];
      this._text.replaceChildren(...texts.filter(text => text).map(line));
      return;
    }
    const forS = (performance.now() - this._watch.sinceMs) / 1000;
    const lines = [`GPU: ${stateLabel(state, forS)}`, stateReason(state)];
    if (state.host) {
      lines.push(`Host: ${state.host}`);
    }
    const report = this._watch.lastReport;
    if (report !== null) {
      const text = reportLabel(report);
      lines.push(`Last run: ${text || 'in the notebook, on the CPU'}`);
    }
    if (this._watch.refusal && state.state !== 'offline') {
      lines.push(`Not prepared: ${this._watch.refusal}`);
    }
    lines.push(problem);
    this._text.replaceChildren(...lines.filter(text => text).map(line));
  }

  private _closer: ((event: Event) => void) | null = null;
  private readonly _text = document.createElement('div');
  private readonly _switch = document.createElement('input');
}
