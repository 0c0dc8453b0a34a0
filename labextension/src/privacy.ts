// Which cells may be sent before Run.

/** Metadata as notebooks have it: of a cell or of the notebook. */
export type Metadata = Readonly<Record<string, unknown>> | undefined;

function ours(metadata: Metadata): Record<string, unknown> {
  const found = metadata?.['looseleaf'];
  return typeof found === 'object' && found !== null
    ? (found as Record<string, unknown>)
    : {};
}

/** Whether the cell's text must not leave the page before Run. */
export function isPrivate(
  cell: Metadata,
  notebook: Metadata,
  privateTags: readonly string[]
): boolean {
  if (ours(cell)['private'] === true || ours(notebook)['private'] === true) {
    return true;
  }
  const tags = cell?.['tags'];
  return Array.isArray(tags) && tags.some(tag => privateTags.includes(tag));
}

/** The cell's wish for a device, empty if it has none. */
export function deviceWish(cell: Metadata): string {
  const wish = ours(cell)['device'];
  return wish === 'gpu' || wish === 'cpu' ? wish : '';
}
