"""Settings of the interpreter, the standard library, numpy and torch hold wherever the session's next cell runs."""

from __future__ import annotations

CHANGES = """
import csv, gc, locale, logging, os, socket, sys, time
import numpy as np, torch
os.umask(0o027)
locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")
os.environ["TZ"] = "Asia/Tokyo"; time.tzset()
sys.setswitchinterval(0.25); sys.set_int_max_str_digits(5000)
socket.setdefaulttimeout(7.5)
gc.disable(); gc.set_threshold(900, 11, 12)
csv.register_dialect("mine", delimiter=";", quoting=csv.QUOTE_NONE, escapechar="!"); csv.field_size_limit(4321)
logging.addLevelName(15, "DETAIL"); logging.addLevelName(logging.INFO, "Note")
def on_error(kind, flag): found.append(kind)
found = []
np.seterr(divide="call"); np.seterrcall(on_error); np.setbufsize(1600)
torch.backends.cuda.matmul.fp32_precision = "tf32"; torch.backends.cudnn.conv.fp32_precision = "ieee"
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
torch.backends.cudnn.benchmark = True; torch.backends.cuda.enable_flash_sdp(False); torch.set_num_threads(3)
"""
TOLD = """
def told():
    import csv, gc, locale, logging, os, re, socket, sys, time
    import numpy as np, torch
    dialect = csv.get_dialect("mine") if "mine" in csv.list_dialects() else None
    backends = torch.backends
    np.array([1.0]) / np.array([0.0])
    return [
        re.search("Umask:\\t(.*)", open("/proc/self/status").read())[1], locale.setlocale(locale.LC_NUMERIC),
        time.tzname[0], sys.getswitchinterval(), sys.get_int_max_str_digits(), socket.getdefaulttimeout(),
        gc.isenabled(), gc.get_threshold(), csv.field_size_limit(),
        dialect and [dialect.delimiter, dialect.quoting, dialect.escapechar],
        logging.getLevelName(15), logging.getLevelName(logging.INFO), np.getbufsize(),
        backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision,
        backends.cuda.matmul.allow_bf16_reduced_precision_reduction, backends.cudnn.benchmark,
        backends.cuda.flash_sdp_enabled(), torch.get_num_threads(),
    ]
"""


def test_settings_made_in_one_process_hold_in_the_next(process):
    change = f"before = told(); cell({CHANGES!r}); there = told(); cell('found.clear()'); save()"
    before, there = process(f"{TOLD}{change}; result = [before, there]")
    assert [one for one, other in zip(before, there, strict=True) if one == other] == [], "each of them was changed"
    here, called = process(TOLD + "restore_all(); here = told(); result = [here, check('found')]")
    assert here == there
    assert called == ["divide by zero"]
    assert process("restore('found'); result = save().version") == 1, "nothing changed"
