# What is printed, written and logged, beside displays and results, on both sides and in their order.
# gpu-cells: 14
# %% setup
import contextlib
import io
import logging
import sys
import warnings

from IPython.display import display
# %% in-order gpu
print("one")
display("two")
print("three", flush=True)
"four"
# %% in-order-here
print("one")
display("two")
print("three", flush=True)
"four"
# %% both-streams gpu
print("out")
print("err", file=sys.stderr)
display({"a": 1})
print("err again", file=sys.stderr)
# %% no-newline gpu
print("no newline", end="")
# %% no-newline-here
print("another line")
# %% ways-to-write gpu
written = sys.stdout.write("written\n")
sys.stdout.writelines(["a\n", "b\n"])
print(*"abc", sep="-", end="!\n")
written, sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.writable()
# %% ways-to-write-here
written = sys.stdout.write("written\n")
written, sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.writable()
# %% odd-texts gpu
print("tab\tbell\a back\b none", "\x1b[31mred\x1b[0m", "snake \N{SNAKE}", "zero\0byte")
# %% not-a-text gpu
try:
    sys.stdout.write(b"bytes")
except TypeError as error:
    print(error)
# %% redirected gpu
buffer = io.StringIO()
with contextlib.redirect_stdout(buffer), contextlib.redirect_stderr(buffer):
    print("into the buffer")
    print("and this", file=sys.stderr)
print("shown", buffer.getvalue().splitlines())
# %% redirected-here
print(buffer.getvalue())
# %% replaced gpu
kept, sys.stdout = sys.stdout, io.StringIO()
print("swallowed")
sys.stdout, caught = kept, sys.stdout.getvalue()
print("back", repr(caught))
# %% logged gpu
logger = logging.getLogger("golden.streams")
logger.warning("by the last resort")
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s", level=logging.INFO, force=True)
logger.info("to stdout")
# %% logged-here
logging.getLogger("golden.streams").info("from here")
# %% warned gpu
warnings.warn("only once", stacklevel=1)
print("after the warning")
# %% long gpu
for i in range(3000):
    print(i, "x" * 20)
# %% carriage gpu
for i in range(5):
    print(f"\r{i}/4", end="")
print()
# %% many-displays gpu
for i in range(20):
    print("before", i)
    display(i)
# %% error-after-output gpu raises
print("said before", end="")
print("and on stderr", end="", file=sys.stderr)
raise RuntimeError("after both")
# %% last-here
print("still", "in", "order")
