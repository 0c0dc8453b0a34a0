// One open notebook: its edits become signals, its kernel's states are kept for those that show them.

import type { ISessionContext } from '@jupyterlab/apputils';
import type { Cell, ICellModel } from '@jupyterlab/cells';
import { NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import { Signal } from '@lumino/signaling';

import { setFooter } from './footer';
import { KernelLink } from './kernelLink';
import { reportLabel, stateLabel } from './labels';
import { LastSent } from './lastSent';
import { deviceWish, isPrivate, type Metadata } from './privacy';
import {
  IMPLEMENTATION,
  SOURCE_CHARS_MAX,
  type IReport,
  type ISignal,
  type IState,
  type Kind
} from './protocol';
import type { Settings } from './settings';
import { SignalQueue } from './signalQueue';

const RELEASED: IState = { state: 'released' };
const LOST = 'the connection is lost; the page tries to get it back. Cells that run go on';
const DEAD = 'the kernel has ended; restart it to go on';

/** Watches a panel until that is disposed. Does nothing while the panel's kernel is none of ours. */
export class NotebookWatch {
  constructor(
    private readonly _panel: NotebookPanel,
    private readonly _settings: Settings
  ) {
    const session = _panel.sessionContext;
    session.kernelChanged.connect(this._onKernel, this);
    session.statusChanged.connect(this._onStatus, this);
    _panel.content.activeCellChanged.connect(this._onActiveCell, this);
    NotebookActions.executed.connect(this._onExecuted, this);
    _settings.changed.connect(this._onSettings, this);
    _panel.disposed.connect(() => this._dispose());
    _panel.content.node.addEventListener('paste', this._onPaste, true);
    void this._link(session);
    this._watchCell(_panel.content.activeCell);
  }

  readonly changed = new Signal<this, void>(this);

  /** Null while the notebook's kernel is none of ours; one of ours that has ended is told until another comes. */
  get state(): IState | null {
    return this._kernel === null && !this._ended ? null : this._state;
  }

  /** When the state was told, by the page's clock. */
  get sinceMs(): number {
    return this._sinceMs;
  }

  /** What the newest run told. */
  get lastReport(): IReport | null {
    return this._lastReport;
  }

  /** Why the newest text was not prepared for, empty if it was or needs no GPU. */
  get refusal(): string {
    return this._lastSent.refusal;
  }

  // -- the kernel ------------------------------------------------------------------------------------

  private _onKernel(session: ISessionContext): void {
    void this._link(session);
  }

  private async _link(session: ISessionContext): Promise<void> {
    this._unlink();
    const connection = session.session?.kernel;
    if (!connection) {
      // The page lets go of a kernel that has ended.
      if (this._ended) {
        this._unheard(DEAD);
      }
      return;
    }
    this._ended = this._ours = false;
    // A kernel that runs a cell answers no question about itself before its end: the usual name is enough.
    if (connection.name !== IMPLEMENTATION) {
      const info = await connection.info.catch(() => null);
      // Another kernel may have come while this one was asked.
      const same = session.session?.kernel === connection && !this._panel.isDisposed;
      if (info?.implementation !== IMPLEMENTATION || !same) {
        return;
      }
    }
    if (this._kernel !== null) {
      return;
    }
    const kernel = new KernelLink(connection);
    this._kernel = kernel;
    this._ours = true;
    kernel.told.connect((_, state) => this._setState(state));
    kernel.connection.connect((_, now) =>
      now === 'back' ? this._reconnected() : this._unheard(this._ended ? DEAD : LOST)
    );
    kernel.reported.connect((_, told) => this._report(told.cellId, told.report));
    this._setState({ ...RELEASED });
    this._hello();
  }

  private _unlink(): void {
    this._queue.reset();
    this._kernel?.dispose();
    this._kernel = null;
    this._restarted();
  }

  private _onStatus(session: ISessionContext, status: string): void {
    if (status === 'restarting' || status === 'autorestarting') {
      this._queue.reset();
      this._restarted();
      this._awaitsRestart = true;
    } else if (this._awaitsRestart && (status === 'idle' || status === 'busy')) {
      this._awaitsRestart = false;
      if (this._kernel?.kernel === session.session?.kernel) {
        this._hello();
      } else {
        void this._link(session);
      }
    } else if (status === 'dead' && this._ours) {
      this._ended = true;
      this._queue.reset();
      this._unheard(DEAD);
    }
  }

  private _restarted(): void {
    this._state = RELEASED;
    this._sinceMs = performance.now();
    this._lastChange = -1;
    this._lastSent.forget();
    this.changed.emit();
  }

  // Whatever was told last may be true no more.
  private _unheard(reason: string): void {
    this._state = { state: 'disconnected', reason };
    this._sinceMs = performance.now();
    this._showLive(this._state);
    this.changed.emit();
  }

  private _reconnected(): void {
    // Nobody knows whether what was on its way arrived, nor whether the kernel counts its states from 0 again.
    this._queue.reset();
    this._lastSent.forget();
    this._lastChange = -1;
    this._hello();
  }

  // A kernel that does not know this page yet learns of it and tells its state; what was typed meanwhile is prepared.
  private _hello(): void {
    this._queue.now(() => (this._typed ? this._signal('focus') : null) ?? this._plain('idle'));
  }

  private _setState(state: IState): void {
    const change = state.change ?? this._lastChange + 1;
    if (change < this._lastChange) {
      return;
    }
    this._lastChange = change;
    if (state.state !== this._state.state || state.cell_id !== this._state.cell_id) {
      this._sinceMs = performance.now();
    }
    this._state = state;
    this._showLive(state);
    this.changed.emit();
  }

  private async _send(signal: ISignal): Promise<void> {
    if (this._kernel !== null) {
      await this._lastSent.follow(this._kernel.send(signal));
      this.changed.emit();
    }
  }

  // -- edits -----------------------------------------------------------------------------------------

  private _onActiveCell(_: unknown, cell: Cell | null): void {
    this._watchCell(cell);
    this._focus();
  }

  private _focus(): void {
    // Whatever was being prepared for is not edited any more, also when the new cell must not be told.
    this._queue.now(() => (this._code() === null ? this._plain('blur') : this._signal('focus')));
  }

  private _watchCell(cell: Cell | null): void {
    this._model?.sharedModel.changed.disconnect(this._onText, this);
    this._model = cell?.model ?? null;
    this._model?.sharedModel.changed.connect(this._onText, this);
  }

  private _onText(_: unknown, change: { sourceChange?: unknown }): void {
    // Outputs and counts change the cell too.
    if (change.sourceChange === undefined) {
      return;
    }
    this._typed = true;
    if (this._pasted) {
      this._pasted = false;
      this._queue.now(() => this._signal('paste'));
    } else {
      this._queue.later(() => this._signal('edit'), this._settings.debounceMs);
    }
  }

  private _onPaste = (): void => {
    this._pasted = true;
    // A paste that changes no text must not make the next key a paste.
    setTimeout(() => {
      this._pasted = false;
    }, 0);
  };

  private _onExecuted(_: unknown, args: { notebook: unknown; cell: Cell }): void {
    // What this cell made is there now: the next one can be prepared with it.
    if (args.notebook === this._panel.content && args.cell.model !== this._model) {
      this._focus();
    }
  }

  private _onSettings(): void {
    if (!this._settings.footers) {
      this._panel.content.widgets.forEach(cell => setFooter(cell, ''));
    }
    this._focus();
  }

  /** The active cell, if it may be sent. */
  private _code(): ICellModel | null {
    const model = this._model;
    if (!this._settings.enabled || model === null || model.isDisposed || model.type !== 'code') {
      return null;
    }
    const notebook = this._panel.model?.metadata as Metadata;
    const hidden = isPrivate(model.metadata as Metadata, notebook, this._settings.privateTags);
    return hidden ? null : model;
  }

  /** The active cell as a signal; null if there is nothing new to send. */
  private _signal(kind: Kind): ISignal | null {
    const model = this._code();
    if (model === null || this._kernel === null) {
      return null;
    }
    const metadata = model.metadata as Metadata;
    const source = model.sharedModel.getSource();
    const told = `${model.id} ${deviceWish(metadata)} ${source}`;
    if (source.length > SOURCE_CHARS_MAX || !source.trim() || (kind !== 'focus' && told === this._lastSent.text)) {
      return null;
    }
    this._lastSent.text = told;
    return {
      kind,
      cell_id: model.id,
      source,
      device_override: deviceWish(metadata)
    };
  }

  private _plain(kind: Kind): ISignal | null {
    if (this._kernel === null) {
      return null;
    }
    return { kind, cell_id: '', source: '', device_override: '' };
  }

  // -- footers ---------------------------------------------------------------------------------------

  private _cell(cellId: string): Cell | undefined {
    return this._panel.content.widgets.find(cell => cell.model.id === cellId);
  }

  private _showLive(state: IState): void {
    const runs = ['queued', 'running', 'saving'].includes(state.state);
    if (!runs && this._liveCell) {
      const before = this._cell(this._liveCell);
      this._liveCell = '';
      if (before) {
        setFooter(before, '');
      }
    }
    const cell = runs && state.cell_id ? this._cell(state.cell_id) : undefined;
    if (cell && this._settings.footers) {
      this._liveCell = cell.model.id;
      const reason = state.state === 'queued' && state.reason ? ` (${state.reason})` : '';
      const text = state.state === 'running' ? 'running' : stateLabel(state, 0);
      setFooter(cell, `GPU: ${text}${reason}`);
    }
  }

  private _report(cellId: string, report: IReport): void {
    this._lastReport = report;
    if (this._liveCell === cellId) {
      this._liveCell = '';
    }
    const cell = this._cell(cellId);
    if (cell && this._settings.footers) {
      setFooter(cell, reportLabel(report));
    }
    this.changed.emit();
  }

  private _dispose(): void {
    NotebookActions.executed.disconnect(this._onExecuted, this);
    this._settings.changed.disconnect(this._onSettings, this);
    this._panel.content.node.removeEventListener('paste', this._onPaste, true);
    this._watchCell(null);
    this._unlink();
    Signal.clearData(this);
  }

  private readonly _queue = new SignalQueue<ISignal>(signal => this._send(signal));
  private _kernel: KernelLink | null = null;
  private _state: IState = RELEASED;
  private _sinceMs = 0;
  private _lastChange = -1;
  private _lastReport: IReport | null = null;
  private _model: ICellModel | null = null;
  private readonly _lastSent = new LastSent();
  private _liveCell = '';
  private _typed = false;
  private _pasted = false;
  private _awaitsRestart = false;
  /** The newest kernel is, or was, one of ours; and it has ended. */
  private _ours = false;
  private _ended = false;
}
