# The working directory, environment, import path and switches of a process, set in one cell and met in the next.
# gpu-cells: 19
# %% setup
import decimal
import os
import random
import sys
import tempfile
import warnings

import numpy as np
top = os.path.realpath(tempfile.mkdtemp())
os.chdir(top)
# %% made gpu
os.makedirs("data/deep")
%cd -q data
os.path.relpath(os.getcwd(), top)
# %% made-here
os.path.relpath(os.getcwd(), top), os.listdir()
# %% back gpu
%cd -q ..
%cd -q data/deep
os.path.relpath(os.getcwd(), top)
# %% back-here
os.chdir(top)
# %% back-gpu gpu
os.getcwd() == top, os.path.exists("data/deep")
# %% no-such gpu
%cd no-such-folder
# %% env gpu
%env GOLDEN_A=1
os.environ["GOLDEN_B"] = "two words"
# %% env-here
%env GOLDEN_A
print(os.environ["GOLDEN_B"])
del os.environ["GOLDEN_A"]
# %% env-gpu gpu
os.environ.get("GOLDEN_A"), os.environ.get("GOLDEN_B")
# %% env-child gpu
!echo "b is $GOLDEN_B, python says {os.environ['GOLDEN_B']}"
# %% env-set gpu
%set_env GOLDEN_C {top == os.getcwd()}
# %% env-set-here
os.environ.pop("GOLDEN_C"), os.environ.pop("GOLDEN_B")
# %% path gpu
os.makedirs("lib", exist_ok=True)
with open("lib/golden_lib.py", "w") as file:
    file.write("VALUE = 3\ndef value():\n    return VALUE\n")
sys.path.insert(0, os.path.join(top, "lib"))
# %% path-here
import golden_lib
golden_lib.value(), sys.path[0] == os.path.join(top, "lib")
# %% path-gpu gpu
import golden_lib
golden_lib.VALUE = 4
golden_lib.value()
# %% seeds gpu
random.seed(3)
np.random.seed(3)
random.random(), np.random.rand()
# %% seeds-here
random.random(), np.random.rand()
# %% seeds-gpu gpu
random.random(), np.random.rand()
# %% options gpu
np.set_printoptions(precision=2, suppress=True)
decimal.getcontext().prec = 5
warnings.simplefilter("error", DeprecationWarning)
np.array([1.23456, 1e-9])
# %% options-here
print(np.array([1.23456, 1e-9]), decimal.Decimal(1) / 3)
# %% options-warn raises
warnings.warn("now an error", DeprecationWarning)
# %% options-warn-gpu gpu raises
warnings.warn("now an error", DeprecationWarning)
# %% switches gpu
sys.setrecursionlimit(2500)
old = os.umask(0o027)
os.umask(old)
sys.getrecursionlimit()
# %% switches-here
sys.getrecursionlimit()
# %% errstate gpu
np.seterr(divide="raise")["divide"]
# %% errstate-here raises
np.ones(1) / 0
# %% exits gpu raises
sys.exit("enough")
# %% exits-code gpu raises
sys.exit(3)
# %% pip
%pip --version
# %% last gpu
os.path.relpath(os.getcwd(), top)
