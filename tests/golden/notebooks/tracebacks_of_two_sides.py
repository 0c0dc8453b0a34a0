# Errors in code of other cells, chained, annotated and shown in other ways, raised here and on the GPU.
# gpu-cells: 17
# %% setup
import sys
import traceback
# %% defined gpu
def scale(values, by):
    checked = [float(value) for value in values]

    return [value / by for value in checked]
# %% defined-here
def mean(values):
    total = sum(scale(values, 1))
    return total / len(values)
# %% from-here gpu raises
mean([])
# %% from-there raises
scale([1, 2], 0)
# %% redefined gpu
def scale(values, by):
    # one line more than before
    return [value * by for value in values]
# %% redefined-here raises
mean([None])
# %% deep gpu raises
def down(n):
    if n:
        return down(n - 1)
    return scale(3, 1)

down(5)
# %% endless gpu
def forever():
    return forever()

try:
    forever()
except RecursionError as error:
    print(error)
# %% cause gpu raises
try:
    int("x")
except ValueError as error:
    raise KeyError("no number") from error
# %% context gpu raises
try:
    {}["a"]
except KeyError:
    [][0]
# %% hidden-context gpu raises
try:
    {}["a"]
except KeyError:
    raise LookupError("only this") from None
# %% notes raises
error = ValueError("with notes")
error.add_note("first note")
error.add_note("second\nnote")
raise error
# %% again gpu raises
raise LookupError(error.args[0])
# %% exec gpu raises
exec("a = 1\nb = a / 0\n")
# %% eval-syntax gpu raises
eval("1 +")
# %% compiled gpu raises
exec(compile("def inner():\n    raise OSError(2, 'no file', 'name')\ninner()", "made-up.py", "exec"))
# %% multi-line gpu raises
result = scale(
    [1, 2],
    by=scale(
        None, 2
    ),
)
# %% printed gpu
try:
    mean([])
except ZeroDivisionError:
    print(traceback.format_exc().splitlines()[-1])
    print([frame.name for frame in traceback.extract_tb(sys.exc_info()[2])])
# %% no-html gpu raises
class Noisy:
    def __repr__(self):
        return "Noisy()"
    def _repr_html_(self):
        raise RuntimeError("no html")

Noisy()
# %% plain
%xmode Plain
# %% plain-gpu gpu raises
scale(None, 2)
# %% verbose-off
%xmode Context
# %% own-exception gpu raises
class Refused(Exception):
    def _render_traceback_(self):
        return ["Refused, in its own words"]

raise Refused
# %% own-exception-here raises
raise Refused
