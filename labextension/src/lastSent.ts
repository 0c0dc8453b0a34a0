// What the kernel was told last and what it answered; when a connection came back. Pure, so that it is tested without a
// page.

import { refusalOf, type IReply } from './protocol.js';

/** The newest text that was sent, so that none is sent twice, and why it was not prepared for. */
export class LastSent {
  /** Empty where the text is to be sent again. */
  text = '';
  /** Empty if the kernel prepared for the text, or needed not to. */
  refusal = '';

  /** The kernel that was told is gone; what it still answers counts no more. */
  forget(): void {
    this.text = '';
    this.refusal = '';
    this._newest = null;
  }

  /**
   * Waits for the answer to the newest signal. A text that was refused, or whose answer was lost, is to be sent again.
   * Never rejects.
   */
  async follow(answer: Promise<IReply>): Promise<void> {
    this._newest = answer;
    let refusal = '';
    let lost = false;
    try {
      refusal = refusalOf(await answer);
    } catch {
      lost = true;
    }
    if (this._newest !== answer) {
      return;
    }
    this.refusal = refusal;
    if (lost || refusal) {
      this.text = '';
    }
  }

  private _newest: Promise<IReply> | null = null;
}

/** Tells when a connection to a kernel is lost, and when it has come back: what the kernel pushed meanwhile was lost. */
export class Reconnects {
  /** `status`: of the connection now. A first connection is none that comes back. */
  constructor(status: string) {
    this._connected = status === 'connected';
  }

  /** Whether there was a connection and is none now. */
  get lost(): boolean {
    return this._lost;
  }

  /** Whether the connection has come back with this change. */
  seen(status: string): boolean {
    const connected = status === 'connected';
    const back = connected && this._lost;
    this._lost = !connected && (this._lost || this._connected);
    this._connected = connected;
    return back;
  }

  private _connected: boolean;
  private _lost = false;
}
