# `_`, `Out`, `In` and the cells' numbers, read and changed in turn by cells here and on the GPU.
# gpu-cells: 15
# %% five
5
# %% six gpu
[6]
# %% last-two
_, __
# %% by-number gpu
_1, Out[2], _2 is Out[2]
# %% semicolon gpu
"not shown";
# %% semicolon-here
_ == ((5, [6]), [5, [6]]) or _
# %% nothing gpu
None
# %% nothing-here
_
# %% print-only gpu
print(_)
# %% error gpu raises
_ + 1 / 0
# %% after-error gpu
In[1], In[-1], len(In)
# %% after-error-here
sorted(Out)
# %% changed gpu
_2.append(7)
_2
# %% changed-here
Out[2], _2
# %% inputs gpu
_i, _ii, _i1
# %% inputs-here
_i, _iii, In[3]
# %% own-underscore gpu
for _ in range(3):
    pass
"value"
# %% own-underscore-here
_
# %% own-deleted gpu
del _
"again"
# %% own-deleted-here
_, __
# %% assigned gpu
kept = _
kept, Out[max(Out)]
# %% count-here
get_ipython().execution_count
# %% count gpu
get_ipython().execution_count
# %% recall
%recall 1
# %% out-of-results gpu raises
Out[999]
# %% forget
%reset -f out
# %% forgotten gpu
len(Out)
