# Cells that await at their top level, next to ordinary ones, and what they leave behind.
# gpu-cells: 15
# %% setup
import asyncio
import contextvars

async def later(value, delay=0):
    await asyncio.sleep(delay)
    return value
# %% simple gpu
await later("awaited")
# %% simple-here
await later("awaited")
# %% async-for gpu
async def count(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield i

async for i in count(3):
    print(i)
[i async for i in count(4) if i % 2]
# %% async-with-here
class Scope:
    async def __aenter__(self):
        print("in")
        return self
    async def __aexit__(self, *exc):
        print("out", exc[0] and exc[0].__name__)
        return exc[0] is ValueError

async with Scope():
    raise ValueError
# %% async-with gpu
async with Scope() as scope:
    raise ValueError
type(scope).__name__
# %% group gpu
async with asyncio.TaskGroup() as group:
    tasks = [group.create_task(later(i)) for i in range(3)]
[task.result() for task in tasks]
# %% group-fails gpu raises
async def fails():
    raise LookupError("in a task")

async with asyncio.TaskGroup() as group:
    group.create_task(fails())
# %% timeout gpu raises
async with asyncio.timeout(0.01):
    await asyncio.sleep(60)
# %% gathered gpu
await asyncio.gather(later(1), fails(), return_exceptions=True)
# %% cancelled gpu
task = asyncio.ensure_future(later("never", 60))
await asyncio.sleep(0)
task.cancel()
try:
    await task
except asyncio.CancelledError:
    print("cancelled", task.cancelled())
# %% error gpu raises
value = await later(0)
1 / value
# %% lambda gpu
total = 0
async def add(i):
    global total
    await asyncio.sleep(0)
    total += i

for i in range(4):
    await add(i)
total
# %% total-here
total
# %% context gpu
name = contextvars.ContextVar("name", default="default")
name.set("set in a cell that awaits")
await later(name.get())
# %% nested gpu
def plain():
    return later("from a plain function")

await plain()
# %% not-awaited gpu
coroutine = later("closed")
coroutine.close()
type(coroutine).__name__
# %% loop-runs gpu
try:
    asyncio.get_running_loop().run_until_complete(asyncio.sleep(0))
except RuntimeError as error:
    print(error)
await asyncio.sleep(0)
# %% autoawait gpu
%autoawait
# %% last-here
await asyncio.gather(*(later(i) for i in range(3)))
