# Outputs that cells catch for later, one way inside another, shown where they were not made.
# gpu-cells: 12
# %% setup
import sys
from IPython.display import HTML, display
from IPython.utils.capture import capture_output
# %% all gpu
%%capture caught
print("out")
print("err", file=sys.stderr)
display(HTML("<b>bold</b>"))
"result"
# %% all-here
print(repr(caught.stdout), repr(caught.stderr), len(caught.outputs))
# %% all-shown gpu
caught.show()
# %% all-shown-here
caught.outputs[0]
# %% only-out gpu
%%capture --no-stderr --no-display only
print("hidden")
print("shown", file=sys.stderr)
display("shown as well")
# %% only-out-here
only.stdout
# %% nothing gpu
%%capture
print("never seen")
# %% fails gpu
%%capture half
print("before")
1 / 0
# %% fails-here
half.stdout if "half" in globals() else "not bound"
# %% here-caught
%%capture of_kernel
print("made here")
display({"k": 1})
# %% here-caught-gpu gpu
of_kernel.show()
of_kernel.stdout.upper()
# %% timed gpu
%%capture timed
%%time
print("inside")
# %% timed-here
timed.stdout.splitlines()[0], "Wall time" in timed.stdout
# %% context gpu
with capture_output() as inner:
    print("in the block")
    display("shown in the block")
print("after", repr(inner.stdout), len(inner.outputs))
# %% context-here
inner.show()
# %% nested gpu
with capture_output() as outer:
    print("outer")
    with capture_output() as within:
        print("within")
    print(repr(within.stdout))
outer.stdout
# %% shell gpu
%%capture lines
!echo from the shell
# %% shell-here
lines.stdout
# %% bash gpu
%%bash --out listed
printf 'one\ntwo\n'
# %% bash-here
listed.split()
# %% magic-in-function gpu
def quiet(code):
    with capture_output() as got:
        get_ipython().run_cell(code)
    return got.stdout

quiet("print('run inside'); 1 + 1")
# %% magic-in-function-here
quiet("print('run inside')")
