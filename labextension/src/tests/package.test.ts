import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

// From lib/tests, where node runs it.
const PACKAGE = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));

test('the page demands of JupyterLab what the package depends on, not the version that it was built with', () => {
  const core = Object.keys(PACKAGE.dependencies).filter(name => name.startsWith('@jupyterlab/'));
  assert.ok(core.length > 0);
  for (const name of core) {
    assert.equal(PACKAGE.jupyterlab.sharedPackages[name]?.requiredVersion, PACKAGE.dependencies[name], name);
  }
});
