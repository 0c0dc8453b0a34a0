// The plugin: one watch for each open notebook, one state line in the status bar or in each notebook's toolbar.

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';

import { NotebookWatch } from './notebookWatch';
import { Settings } from './settings';
import { StateView } from './stateView';

const PLUGIN_ID = '@looseleaf/lab:plugin';

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: 'Prepares LooseLeaf GPU cells while they are edited and shows what the GPU does.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ISettingRegistry, IStatusBar],
  activate: (
    _app: JupyterFrontEnd,
    tracker: INotebookTracker,
    registry: ISettingRegistry | null,
    statusBar: IStatusBar | null
  ) => {
    const settings = new Settings();
    void settings.load(registry, PLUGIN_ID);
    const watches = new WeakMap<NotebookPanel, NotebookWatch>();
    const watchOf = (panel: NotebookPanel): NotebookWatch => {
      let watch = watches.get(panel);
      if (watch === undefined) {
        watch = new NotebookWatch(panel, settings);
        watches.set(panel, watch);
      }
      return watch;
    };
    const open = (panel: NotebookPanel) => {
      const watch = watchOf(panel);
      if (statusBar === null) {
        const view = new StateView(settings);
        view.watch = watch;
        panel.toolbar.addItem('looseleaf-state', view);
      }
    };
    tracker.widgetAdded.connect((_, panel) => open(panel));
    tracker.forEach(open);
    if (statusBar !== null) {
      const view = new StateView(settings);
      view.id = 'looseleaf-status';
      const show = () => {
        const panel = tracker.currentWidget;
        view.watch = panel === null ? null : watchOf(panel);
      };
      tracker.currentChanged.connect(show);
      show();
      statusBar.registerStatusItem(PLUGIN_ID, { item: view, align: 'left', rank: 10 });
    }
  }
};

export default plugin;
