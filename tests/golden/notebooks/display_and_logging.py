# Objects that say how they are shown, and the quiet settings of a process: logging, warnings, contexts, decimals, locale.
# gpu-cells: 31
# run-again: 1
# %% setup
import contextvars
import decimal
import locale
import logging
import sys
import warnings

import numpy as np
import torch
from IPython.display import HTML, JSON, Image, Latex, Markdown, Pretty, display
torch.manual_seed(0)
w = torch.arange(6.0, device="cuda").reshape(2, 3)
# %% repr-html gpu
class Report:
    def __init__(self, t): self.t = t
    def _repr_html_(self): return f"<b>{self.t.sum().item():.1f}</b>"
    def __repr__(self): return f"Report({self.t.sum().item():.1f})"
report = Report(w)
report
# %% repr-html-here
display(report)
print(report, [report])
# %% mimebundle gpu
class Bundle:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "bundle", "text/html": "<i>bundle</i>", "application/json": {"n": int(w.numel())}}, {"text/html": {"isolated": True}}
bundle = Bundle()
bundle
# %% mimebundle-here
bundle
# %% ipython-display gpu
class Own:
    def _ipython_display_(self):
        print("shows itself", w.device.type)
        display(Markdown("*twice*"))
Own()
# %% many-reprs gpu
class All:
    def _repr_markdown_(self): return "**md**"
    def _repr_latex_(self): return "$x^2$"
    def _repr_svg_(self): return "<svg xmlns='http://www.w3.org/2000/svg'/>"
    def _repr_json_(self): return {"a": [1, 2]}
    def _repr_pretty_(self, p, cycle): p.text(f"All({w.shape[0]})")
everything = All()
everything
# %% many-reprs-here
everything
# %% display-kinds gpu
display(HTML("<u>u</u>"), Latex("$y$"), JSON({"k": [1, {"d": 2}]}), Pretty("plain"), {"text/plain": "raw"}, raw=False)
display({"text/html": "<p>raw</p>", "text/plain": "raw"}, raw=True, metadata={"m": 1})
# %% image gpu
from PIL import Image as PilImage
pixels = (w / w.max() * 255).byte().cpu().numpy()
PilImage.fromarray(pixels).resize((12, 8))
# %% image-here
picture = PilImage.fromarray(pixels)
picture.size, picture.mode
# %% formatter gpu
ip = get_ipython()
ip.display_formatter.formatters["text/html"].for_type(torch.Size, lambda s: f"<code>{tuple(s)}</code>")
w.shape
# %% formatter-here
w.shape
# %% interactivity
ip.ast_node_interactivity = "all"
# %% interactivity-gpu gpu
w[0]
w.sum()
"last"
# %% interactivity-set-gpu gpu
get_ipython().ast_node_interactivity = "last_expr_or_assign"
# %% interactivity-here
assigned = 5 + 5
# %% interactivity-back gpu
get_ipython().ast_node_interactivity = "last_expr"
quiet = 1
# %% printoptions gpu
torch.set_printoptions(precision=1, sci_mode=False, linewidth=40)
np.set_printoptions(precision=2, suppress=True)
w / 7
# %% printoptions-here
print(torch.tensor([1 / 3]), np.array([1 / 3, 1e-9]))
# %% printoptions-gpu-again gpu
print(w / 7, np.array([2 / 3]))
torch.set_printoptions(profile="default")
# %% printoptions-reset
print(torch.tensor([1 / 3]))
# %% seterr gpu
np.seterr(divide="raise")
# %% seterr-here raises
np.array([1.0]) / 0
# %% seterr-gpu gpu
old = np.seterr(divide="warn")
old["divide"]
# %% warn gpu
warnings.warn("first")
warnings.warn("deprecated thing", DeprecationWarning)
# %% warn-filter gpu
warnings.filterwarnings("ignore", message="quiet")
warnings.simplefilter("error", category=FutureWarning)
warnings.warn("quiet please")
# %% warn-filter-here raises
warnings.warn("quiet please")
warnings.warn("the future", FutureWarning)
# %% own-warning gpu
class Mine(UserWarning): pass
warnings.simplefilter("ignore", Mine)
warnings.warn("hidden", Mine)
# %% own-warning-here
warnings.warn("hidden", Mine)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    warnings.warn("seen", Mine)
len(caught), caught[0].category is Mine
# %% logging-setup
logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s", stream=sys.stdout, force=True)
log = logging.getLogger("golden")
log.info("here")
log.debug("not shown")
# %% logging-gpu gpu
log.info("on the gpu %s", w.device.type)
log.setLevel(logging.DEBUG)
log.debug("now shown")
# %% logging-level-here
log.debug("shown here too")
log.level, logging.getLogger("golden") is log
# %% logging-handler gpu
class Collect(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []
    def emit(self, record): self.lines.append(self.format(record))
collect = Collect()
collect.setFormatter(logging.Formatter("%(message)s!"))
log.addHandler(collect)
log.warning("collected on the gpu")
# %% logging-handler-here
log.warning("collected here")
collect.lines, len(log.handlers)
# %% logging-exception gpu
try:
    w.view(7)
except RuntimeError:
    log.exception("failed")
# %% contextvar
request = contextvars.ContextVar("request", default="none")
token_ = request.set("set here")
request.get()
# %% contextvar-gpu gpu
request.name, type(request).__name__
# %% decimal
decimal.getcontext().prec = 6
decimal.Decimal(1) / 7
# %% decimal-gpu gpu
third = decimal.Decimal(1) / 3
with decimal.localcontext() as ctx:
    ctx.prec = 3
    print(decimal.Decimal(2) / 3)
third
# %% decimal-change gpu
decimal.getcontext().rounding = decimal.ROUND_UP
decimal.getcontext().prec = 4
# %% decimal-here
decimal.Decimal(1) / 3, decimal.getcontext().rounding, third
# %% fractions gpu
import fractions
import datetime as dt
import uuid
half = fractions.Fraction(1, 2)
day = dt.datetime(2024, 2, 29, tzinfo=dt.timezone.utc)
ident = uuid.UUID(int=5)
half + half, day + dt.timedelta(days=1), ident
# %% fractions-here
half.limit_denominator(3), day.isoformat(), ident.int
# %% recursion-limit gpu
sys.setrecursionlimit(2345)
# %% recursion-limit-here
sys.getrecursionlimit()
# %% excepthook gpu raises
def handler(shell, etype, value, tb, tb_offset=None):
    print("handled", etype.__name__, value)
get_ipython().set_custom_exc((KeyError,), handler)
{}["k"]
# %% builtins gpu
import builtins
len("still the builtin"), builtins.len is len
