# Cells that await, and the magics that notebooks live by, on both sides.
# gpu-cells: 48
# %% setup
import asyncio
import os
import tempfile
import torch
os.chdir(tempfile.mkdtemp())
torch.manual_seed(0)
t = torch.arange(4.0, device="cuda")
# %% await-gpu
await asyncio.sleep(0)
print("awaited", t.sum().item())
# %% gather
async def job(i):
    await asyncio.sleep(0.001 * (3 - i))
    return i * t[i].item()

results = await asyncio.gather(*(job(i) for i in range(4)))
results
# %% async-for
async def numbers(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield t[i]

[float(x) async for x in numbers(3)]
# %% async-with
class Timer:
    async def __aenter__(self):
        self.log = ["enter"]
        return self
    async def __aexit__(self, *exc):
        self.log.append(exc[0].__name__ if exc[0] else "exit")
        return True

async with Timer() as timer:
    t + torch.ones(3, device="cuda")
timer.log
# %% timer-later
timer.log
# %% timeout gpu
try:
    await asyncio.wait_for(asyncio.sleep(5), 0.01)
except asyncio.TimeoutError as e:
    print("timed out", type(e).__name__)
# %% task-done gpu
task = asyncio.create_task(job(2))
await task
task.done(), task.result()
# %% queue gpu
q = asyncio.Queue()
async def producer():
    for i in range(3):
        await q.put(t[i] * 10)
async def consumer():
    return [(await q.get()).item() for _ in range(3)]
_, got = await asyncio.gather(producer(), consumer())
got
# %% await-error gpu raises
async def fails():
    await asyncio.sleep(0)
    raise ValueError("in a coroutine")

await fails()
# %% time gpu
%time x = (t * 2).sum()
x
# %% time-cell gpu
%%time
y = t.mean()
print(y)
# %% timeit gpu
%timeit -n1 -r1 t + 1
# %% timeit-object gpu
o = %timeit -n2 -r2 -o -q t.sum()
o.loops, o.repeat
# %% capture gpu
%%capture captured
print("hidden", t)
t
# %% captured-here
captured.stdout, captured.stderr, len(captured.outputs)
# %% captured-show gpu
captured.show()
captured()
# %% env gpu
%env GOLDEN_FLAG=on
%env GOLDEN_FLAG
# %% env-here
import os
print(os.environ["GOLDEN_FLAG"], os.getenv("GOLDEN_NONE"))
%env GOLDEN_FLAG=off
# %% env-gpu-again gpu
!echo flag is $GOLDEN_FLAG
os.environ.pop("GOLDEN_FLAG")
# %% env-gone
"GOLDEN_FLAG" in os.environ
# %% writefile gpu
%%writefile helpers_golden.py
"""Helpers, written by a cell."""
FACTOR = 3
def scaled(t):
    return t * FACTOR
class Box:
    def __init__(self, value):
        self.value = value
    def __eq__(self, other):
        return type(self) is type(other) and self.value == other.value
# %% import-here
import helpers_golden
helpers_golden.scaled(2), helpers_golden.__doc__
# %% import-gpu gpu
from helpers_golden import Box, scaled
box = Box(5)
scaled(t)
# %% box-here
box.value, box == Box(5), type(box) is helpers_golden.Box, type(box).__module__
# %% patch-module gpu
helpers_golden.FACTOR = 7
scaled(t)
# %% patch-module-here
scaled(1), helpers_golden.FACTOR
# %% append gpu
%%writefile -a helpers_golden.py
def added():
    return FACTOR * 100
# %% reload-here
import importlib
importlib.reload(helpers_golden)
helpers_golden.added(), helpers_golden.FACTOR
# %% reload-gpu gpu
importlib.reload(helpers_golden)
helpers_golden.added(), helpers_golden.scaled(t)
# %% autoreload
%load_ext autoreload
%autoreload 2
# %% edit-file
!sed -i 's/FACTOR = 3/FACTOR = 11/' helpers_golden.py
!grep FACTOR helpers_golden.py | head -1
# %% script gpu
%%writefile script_golden.py
import sys
answer = 6 * 7
print("script", __name__, sys.argv[1:])
# %% run-script gpu
%run script_golden.py one two
answer
# %% run-script-here
%run -i script_golden.py
answer + 1
# %% cd gpu
os.makedirs("inner", exist_ok=True)
%cd -q inner
os.path.basename(os.getcwd())
# %% cd-here
print(os.path.basename(os.getcwd()))
open("note.txt", "w").write("from here")
%cd -q ..
# %% cd-back gpu
open("inner/note.txt").read(), os.path.basename(os.getcwd()) != "inner"
# %% shell gpu
name = "world"
!echo hello {name} $name {t.shape[0] + 1}
listing = !ls inner
listing
# %% shell-list-here
listing, type(listing).__name__, listing.n
# %% exit-code gpu
!exit 3
_exit_code
# %% exit-code-here
_exit_code
# %% bash gpu
%%bash
for i in 1 2; do echo "line $i"; done
echo problem >&2
# %% bash-out gpu
%%bash --out lines --err problems
echo captured
echo err >&2
# %% bash-out-here
lines, problems
# %% script-error gpu raises
%%bash
exit 4
# %% python-cell gpu
%%python
print("another interpreter", 1 + 1)
# %% who
%who_ls str
# %% who-gpu gpu
%who_ls str
# %% whos-gpu gpu
a_list = [1, 2]; a_float = 2.5
%whos list float
# %% precision
%precision 3
0.123456
# %% precision-gpu gpu
0.123456
# %% pprint gpu
%pprint
list(range(3))
# %% pprint-here
list(range(3))
# %% pprint-back
%pprint
# %% macro gpu
%macro -q again 2
type(again).__name__
# %% alias-magic
%alias_magic t2 timeit
# %% own-magic gpu
from IPython.core.magic import register_cell_magic, register_line_magic
@register_line_magic
def shout(line):
    return line.upper()
%shout quiet words
# %% own-magic-here
%shout from here
# %% own-cell-magic
@register_cell_magic
def doubled(line, cell):
    get_ipython().run_cell(cell)
    get_ipython().run_cell(cell)
# %% own-cell-magic-gpu gpu
%%doubled
print("twice", t.sum().item())
# %% load-source gpu
%psource scaled
# %% doc gpu
scaled?
# %% system-assign gpu
%sx echo one; echo two
# %% html gpu
%%html
<b>bold</b>
# %% xmode gpu
%xmode Minimal
1 / 0 if t.sum() < 0 else "fine"
# %% xmode-here raises
{}["missing"]
# %% xmode-gpu gpu raises
[][1]
# %% xmode-back
%xmode Context
# %% history gpu
%history -n 1-2
# %% not-a-magic gpu raises
%nonexistent_magic
