# Interrupts that reach a cell in its loops, functions and handlers, and signals of its own.
# gpu-cells: 13
# %% setup
import signal
import time

steps = []
def stop():
    signal.raise_signal(signal.SIGINT)
# %% loop gpu raises
for i in range(10):
    steps.append(i)
    if i == 3:
        stop()
# %% loop-here raises
for i in range(10, 20):
    steps.append(i)
    if i == 13:
        stop()
# %% seen gpu
steps
# %% caught gpu
try:
    stop()
    time.sleep(60)
except KeyboardInterrupt as error:
    print("caught", repr(error))
# %% finally gpu raises
try:
    stop()
    time.sleep(60)
finally:
    print("cleaned up")
# %% deep gpu raises
def outer():
    try:
        inner()
    except KeyboardInterrupt:
        print("on the way")
        raise

def inner():
    stop()
    time.sleep(60)

outer()
# %% turned gpu raises
try:
    stop()
    time.sleep(60)
except KeyboardInterrupt:
    raise TimeoutError("given up") from None
# %% broad gpu raises
try:
    stop()
    time.sleep(60)
except Exception:
    print("not this way")
# %% twice gpu
count = 0
while count < 2:
    try:
        stop()
        time.sleep(60)
    except KeyboardInterrupt:
        count += 1
count
# %% generator gpu
def numbers():
    try:
        yield 1
        stop()
        time.sleep(60)
    except KeyboardInterrupt:
        yield "interrupted"

list(numbers())
# %% alarm gpu
def ring(number, frame):
    raise TimeoutError(f"signal {number == signal.SIGALRM}")

previous = signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.01)
try:
    time.sleep(60)
except TimeoutError as error:
    print(error)
finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)
# %% own-handler gpu
heard = []
previous = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
stop()
signal.signal(signal.SIGINT, previous)
heard == [signal.SIGINT]
# %% own-exception gpu raises
raise KeyboardInterrupt("by hand")
# %% after gpu
steps, count
# %% after-here
steps, count
