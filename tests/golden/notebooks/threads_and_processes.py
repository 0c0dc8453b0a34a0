# Threads, pools and processes that a cell starts and waits for, what they print and how they fail.
# gpu-cells: 12
# %% setup
import concurrent.futures
import os
import queue
import subprocess
import sys
import threading
# %% thread gpu
def work(name):
    print("from", name)

thread = threading.Thread(target=work, args=("a thread",), name="golden")
thread.start()
thread.join()
del thread
print("from the cell")
# %% pool gpu
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    squares = list(pool.map(lambda i: i * i, range(8)))
squares
# %% pool-here
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(abs, squares)))
# %% pool-error gpu raises
with concurrent.futures.ThreadPoolExecutor(1) as pool:
    pool.submit(int, "x").result()
# %% queue gpu
passed = queue.Queue()
def producer():
    for i in range(3):
        passed.put(i)
    passed.put(None)

maker = threading.Thread(target=producer)
maker.start()
got = list(iter(passed.get, None))
maker.join()
del passed, maker
got
# %% shared gpu
total, lock = 0, threading.Lock()
def add():
    global total
    for _ in range(100):
        with lock:
            total += 1

adders = [threading.Thread(target=add) for _ in range(4)]
for adder in adders:
    adder.start()
for adder in adders:
    adder.join()
del lock, adders
total
# %% shared-here
total
# %% hook gpu
heard = []
previous, threading.excepthook = threading.excepthook, lambda args: heard.append(args.exc_type.__name__)
failing = threading.Thread(target=lambda: 1 / 0)
failing.start()
failing.join()
threading.excepthook = previous
del failing, previous
heard
# %% local gpu
own = threading.local()
own.value = "of the cell"
seen = []
other = threading.Thread(target=lambda: seen.append(getattr(own, "value", "nothing")))
other.start()
other.join()
del own, other
seen
# %% run gpu
done = subprocess.run([sys.executable, "-c", "print('from a process')"], capture_output=True, text=True)
done.stdout, done.returncode
# %% run-here
done.stdout, done.args[1:]
# %% run-fails gpu raises
subprocess.run(["false"], check=True)
# %% shell gpu
!echo shell $((1 + 2))
lines = !printf 'a\nb\n'
lines
# %% shell-here
lines.n, list(lines)
# %% forked gpu
child = os.fork()
if not child:
    os._exit(7)
os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
# %% names gpu
threading.current_thread() is threading.main_thread()
# %% names-here
threading.current_thread() is threading.main_thread()
