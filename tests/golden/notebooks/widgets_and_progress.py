# Progress bars, widgets and displays that are updated, made and moved by cells with and without a GPU.
# gpu-cells: 22
# %% setup
import sys
import time
import ipywidgets as widgets
import torch
from IPython.display import HTML, Markdown, clear_output, display, update_display
from tqdm import tqdm, trange
from tqdm.auto import tqdm as auto_tqdm
from tqdm.notebook import tqdm as notebook_tqdm
torch.manual_seed(0)
data = torch.randn(8, 4, device="cuda")
# %% tqdm-text
total = 0.0
for row in tqdm(data, desc="rows", file=sys.stdout, bar_format="{desc}: {n_fmt}/{total_fmt}"):
    total += row.sum().item()
print(f"{total:.3f}")
# %% tqdm-notebook
for i in notebook_tqdm(range(4), desc="notebook", bar_format="{l_bar}{bar}{n_fmt}/{total_fmt}"):
    data[i].mul_(1)
# %% tqdm-auto
with auto_tqdm(total=6, desc="auto", bar_format="{desc} {n_fmt} {postfix}") as bar:
    for i in range(3):
        bar.update(2)
        bar.set_postfix(loss=f"{data[i].abs().sum().item():.2f}")
bar.n
# %% nested gpu
for epoch in trange(2, desc="epoch", file=sys.stdout, bar_format="{desc} {n_fmt}/{total_fmt}"):
    for batch in tqdm(range(3), leave=False, file=sys.stdout, bar_format="{n_fmt}"):
        pass
# %% progress-int gpu
progress = widgets.IntProgress(value=0, min=0, max=4, description="steps")
display(progress)
for i in range(5):
    progress.value = i
progress.value
# %% progress-later
progress.value, progress.max, progress.description
# %% progress-gpu-again gpu
progress.value = 2
progress.bar_style = "success"
progress.value, progress.bar_style
# %% progress-here-again
progress.description = "done"
progress.value, progress.description
# %% label gpu
label = widgets.Label("start")
slider = widgets.FloatSlider(value=0.5, min=0, max=1, step=0.1)
box = widgets.VBox([label, slider])
box
# %% label-here
label.value = "changed"
len(box.children), box.children[0].value, slider.value
# %% link gpu
seen = []
slider.observe(lambda change: seen.append((change["old"], change["new"])), names="value")
slider.value = 0.7
seen
# %% output-widget gpu
out = widgets.Output()
with out:
    print("into the widget", data.shape)
print("outside")
len(out.outputs)
# %% interact gpu
@widgets.interact(n=(1, 5))
def show(n=3):
    print("n is", n, data[:n].shape)
# %% handle gpu
handle = display(Markdown("**epoch 0**"), display_id=True)
for epoch in range(1, 4):
    handle.update(Markdown(f"**epoch {epoch}** loss {data[epoch].pow(2).mean().item():.3f}"))
# %% handle-here
handle.update(Markdown("finished"))
type(handle).__name__
# %% handle-gpu-later gpu
handle.display(HTML("<i>again</i>"))
handle.update("plain")
# %% named-display gpu
display("one", display_id="slot")
display({"a": 1}, display_id="slot2");
# %% named-display-here
update_display("two", display_id="slot")
# %% clear gpu
print("gone")
display(HTML("<b>gone</b>"))
clear_output()
print("stays")
# %% clear-wait gpu
for i in range(3):
    clear_output(wait=True)
    print("step", i)
# %% raw-carriage gpu
for i in range(4):
    print(f"\r{i * 25:3d} %", end="", flush=True)
print()
# %% stderr-mixed gpu
print("to stdout")
print("to stderr", file=sys.stderr)
display("a value between")
print("stdout again")
# %% rich gpu
from rich.console import Console
from rich.table import Table
table = Table(title="weights")
table.add_column("row"); table.add_column("sum", justify="right")
for i, row in enumerate(data[:3]):
    table.add_row(str(i), f"{row.sum().item():.2f}")
Console(width=60, force_jupyter=False, force_terminal=False, color_system=None).print(table)
# %% rich-display gpu
table
# %% rich-here
table.row_count, [c.header for c in table.columns]
# %% pandas-progress gpu
import pandas as pd
auto_tqdm.pandas(desc="apply", bar_format="{desc} {n_fmt}/{total_fmt}")
frame = pd.DataFrame({"a": range(3)})
frame.a.progress_apply(lambda v: v * 2).tolist()
# %% pandas-progress-here
auto_tqdm.pandas(desc="apply here", bar_format="{desc} {n_fmt}/{total_fmt}")
frame.a.progress_apply(lambda v: v + 1).tolist()
# %% bar-kept
bar = tqdm(total=10, file=sys.stdout, mininterval=0, bar_format="{n_fmt}/{total_fmt}")
bar.update(3);
# %% bar-kept-gpu gpu
bar.update(4)
bar.n
# %% bar-closed
bar.close()
bar.n, bar.disable
