// One page's conversation with one kernel: signals on the control channel, states on iopub.

import type { Kernel } from '@jupyterlab/services';
import { KernelMessage } from '@jupyterlab/services';
import { UUID } from '@lumino/coreutils';
import { Signal, type ISignal as ILuminoSignal } from '@lumino/signaling';

import { Reconnects } from './lastSent';
import type { IReply, IReport, ISignal, IState } from './protocol';
import { isState, REQUEST_TYPE, VERSION } from './protocol';

/** A kernel that does not answer for so long is not waited for: it may have been restarted. */
export const REPLY_TIMEOUT_MS = 30_000;
/** Runs whose reply has not come; more of them are forgotten, the oldest first. */
const RUNS_MAX = 1000;

// Signals of one session are ordered by their number, also after the page was loaded again.
let lastSequence = 0;
function nextSequence(): number {
  lastSequence = Math.max(lastSequence + 1, Date.now());
  return lastSequence;
}

/**
 * Talks to a LooseLeaf kernel. The page's address for states looks like a comm to the kernel, but is none here: a comm
 * that is opened or used by a page makes the server take a busy kernel for idle.
 */
export class KernelLink {
  constructor(readonly kernel: Kernel.IKernelConnection) {
    kernel.iopubMessage.connect(this._onIopub, this);
    kernel.anyMessage.connect(this._onAny, this);
    kernel.connectionStatusChanged.connect(this._onConnection, this);
    this._reconnects = new Reconnects(kernel.connectionStatus);
  }

  /** The kernel has told a state. */
  get told(): ILuminoSignal<this, IState> {
    return this._told;
  }

  /** The connection is lost, or has come back: answers and states may have been lost meanwhile. */
  get connection(): ILuminoSignal<this, 'lost' | 'back'> {
    return this._connection;
  }

  /** The reply of a cell came, with its figures. */
  get reported(): ILuminoSignal<this, { cellId: string; report: IReport }> {
    return this._reported;
  }

  /** Resolves with the kernel's answer; rejects if none comes, also where the message cannot be sent. */
  async send(signal: ISignal): Promise<IReply> {
    const message = KernelMessage.createMessage({
      channel: 'control',
      msgType: REQUEST_TYPE as never,
      session: this.kernel.clientId,
      username: this.kernel.username,
      content: {
        v: VERSION,
        edit_sequence: nextSequence(),
        page: this._page,
        ...signal
      } as never
    }) as unknown as KernelMessage.IControlMessage;
    const future = this.kernel.sendControlMessage(message, true, false);
    return new Promise<IReply>((resolve, reject) => {
      const timer = setTimeout(() => {
        reject(new Error('the kernel did not answer'));
        future.dispose();
      }, REPLY_TIMEOUT_MS);
      // The kernel publishes no status for this request, so the future is never "done".
      future.onReply = reply => {
        clearTimeout(timer);
        const content = reply.content as unknown as IReply;
        if (isState(content.state)) {
          this._told.emit(content.state);
        }
        resolve(content);
        future.dispose();
      };
      // A restart ends it.
      future.done.then(undefined, (error: Error) => {
        clearTimeout(timer);
        reject(error);
      });
    });
  }

  dispose(): void {
    this.kernel.iopubMessage.disconnect(this._onIopub, this);
    this.kernel.anyMessage.disconnect(this._onAny, this);
    this.kernel.connectionStatusChanged.disconnect(this._onConnection, this);
    Signal.clearData(this);
  }

  private _onIopub(_: unknown, message: KernelMessage.IIOPubMessage): void {
    if (message.header.msg_type === 'comm_msg') {
      const content = message.content as { comm_id?: string; data?: unknown };
      if (content.comm_id === this._page && isState(content.data)) {
        this._told.emit(content.data);
      }
    }
  }

  private _onAny(_: unknown, args: Kernel.IAnyMessageArgs): void {
    const { msg, direction } = args;
    if (direction === 'send' && msg.header.msg_type === 'execute_request') {
      const cellId = msg.metadata['cellId'];
      if (typeof cellId === 'string') {
        this._runs.set(msg.header.msg_id, cellId);
        if (this._runs.size > RUNS_MAX) {
          this._runs.delete(this._runs.keys().next().value as string);
        }
      }
    } else if (direction === 'recv' && msg.header.msg_type === 'execute_reply') {
      const parent = (msg.parent_header as { msg_id?: string }).msg_id ?? '';
      const cellId = this._runs.get(parent);
      this._runs.delete(parent);
      const report = msg.metadata['looseleaf'];
      if (cellId !== undefined && typeof report === 'object' && report !== null) {
        this._reported.emit({ cellId, report: report as IReport });
      }
    }
  }

  private _onConnection(_: unknown, status: Kernel.ConnectionStatus): void {
    const wasLost = this._reconnects.lost;
    if (this._reconnects.seen(status)) {
      this._connection.emit('back');
    } else if (this._reconnects.lost && !wasLost) {
      this._connection.emit('lost');
    }
  }

  private readonly _page = UUID.uuid4();
  private readonly _runs = new Map<string, string>();
  private readonly _reconnects: Reconnects;
  private readonly _connection = new Signal<this, 'lost' | 'back'>(this);
  private readonly _told = new Signal<this, IState>(this);
  private readonly _reported = new Signal<
    this,
    { cellId: string; report: IReport }
  >(this);
}
