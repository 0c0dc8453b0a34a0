// The line under a cell: what its GPU does now, later how long its last run took.

import type { Cell } from '@jupyterlab/cells';

const CLASS = 'll-Footer';

/** Shows `text` under the cell; an empty text takes the line away. */
export function setFooter(cell: Cell, text: string): void {
  const host = cell.node.querySelector('.jp-CellFooter') ?? cell.node;
  let line = host.querySelector<HTMLElement>(`.${CLASS}`);
  if (!text) {
    line?.remove();
    return;
  }
  if (line === null) {
    line = document.createElement('div');
    line.className = CLASS;
    host.appendChild(line);
  }
  if (line.textContent !== text) {
    line.textContent = text;
  }
}
