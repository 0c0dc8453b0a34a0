"""Installing, changing role and leaving torch as it was."""

# ruff: noqa: PLW0108 - the functions are patched after this module is imported
from __future__ import annotations

import _thread
import importlib.abc
import multiprocessing.spawn
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable

import pytest
import torch
import torch._dynamo
import torch.utils.cpp_extension

from looseleaf import devices
from looseleaf.devices import hook, refusals
from looseleaf.devices.installation import Installation
from looseleaf.errors import InvalidArgument, Unsupported

_OWNERS = (
    torch, torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.accelerator, torch.version,
    torch.backends.cuda, torch.backends.cudnn, torch.Tensor, torch._C, torch._C._nn, torch.UntypedStorage,
    torch.autograd, torch.autograd.graph, torch.autograd.function.Function, torch.autograd.function.BackwardCFunction,
    torch.autograd.graph.saved_tensors_hooks, torch.serialization, torch._C.ScriptFunction, torch.jit.ScriptModule,
    torch.jit.RecursiveScriptModule, torch.nn.DataParallel, threading.Thread, torch.cuda.nvtx, torch._C._nested,
    torch.autograd.profiler.profile, torch.profiler.profiler._KinetoProfile, torch.backends.cuda.cuFFTPlanCache,
    torch.nn.parallel._functions, torch.cuda.profiler, torch.cuda.nccl, torch.cuda.jiterator, torch.distributed,
    torch.cuda.jiterator._JittedFunction, torch.func,
    torch.distributed.distributed_c10d, torch._subclasses.fake_tensor.FakeTensorMode, torch.jit, torch.utils.dlpack,
    torch.utils.cpp_extension, _thread, multiprocessing.spawn,
)


def _finders() -> list[object]:
    return [finder for finder in sys.meta_path if not isinstance(finder, hook.LastingFinder)]


def _attributes() -> dict[tuple[int, str], object]:
    return {(index, name): value for index, owner in enumerate(_OWNERS) for name, value in vars(owner).items()}


@pytest.mark.parametrize("role", ["worker", "reference", "kernel", "zygote"])
@pytest.mark.parametrize("kind", ["emulated", "cuda", "none"])
def test_uninstall_leaves_torch_identical(role: str, kind: str) -> None:
    before, finders = _attributes(), _finders()
    registry = list(torch.serialization._package_registry)
    devices.install(role, kind, 2)  # type: ignore[arg-type]
    assert devices.active()
    if kind != "none" and role == "kernel":
        assert _attributes() != before
    devices.uninstall()
    after = _attributes()
    assert after.keys() == before.keys()
    assert [key for key in before if before[key] is not after[key]] == []
    assert _finders() == finders
    assert torch.serialization._package_registry == registry
    assert torch._C._len_torch_function_stack() == 0
    assert not devices.active()
    assert devices.backend().kind == "none"


def test_import_of_the_package_loads_no_torch_and_patches_nothing() -> None:
    code = (
        "import sys, threading; meta = list(sys.meta_path); run = threading.Thread._bootstrap_inner\n"
        "import looseleaf.devices as d\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert sys.meta_path == meta and threading.Thread._bootstrap_inner is run and not d.active()\n"
        "d.install('worker', 'emulated', 1); assert 'torch' not in sys.modules\n"
        "assert d.touched() is None and d.resident_bytes() == {} and d.backend().kind == 'none'\n"
        "d.attach([0, 1]); d.apply_device_state(d.DeviceState(1, (bytes(16), bytes(range(16)))))\n"
        "import torch\n"
        "assert torch.cuda.device_count() == 2 and torch.zeros(1, device='cuda').device.index == 1\n"
        "assert torch.cuda.get_rng_state(1).tolist() == list(range(16))\n"
        "assert type(torch.__spec__.loader).__name__ == 'SourceFileLoader' and d.backend().kind == 'emulated'\n"
        "d.uninstall(); assert not torch.cuda.is_available() and set(meta) <= set(sys.meta_path)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_torch_imported_later_is_guarded_in_a_kernel_and_forked_with_devices_from_a_zygote() -> None:
    # One process for both: what takes the time is the import.
    code = (
        "import os, threading, looseleaf.devices as d\n"
        "from looseleaf.errors import PreconditionFailed\n"
        "d.install('kernel', 'emulated', 4)\n"
        "import torch\n"
        "assert torch.cuda.device_count() == 4\n"
        "try: torch.zeros(1).cuda()\n"
        "except PreconditionFailed as e: assert e.reason == 'CUDA_IN_CPU_CELL'\n"
        "else: raise SystemExit(1)\n"
        "d.install('zygote', 'emulated', 0)\n"
        "assert threading.active_count() == 1 and not torch.cuda.is_available()\n"
        "assert torch._C._len_torch_function_stack() == 0\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    d.install('worker', 'emulated', 1); d.attach([3])\n"
        "    ok = torch.ones(2).cuda().sum().item() == 2 and torch.cuda.device_count() == 1\n"
        "    os._exit(0 if ok else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("gpus", [(3,), (2, 1), ()])
@pytest.mark.parametrize("cell_sets", ["0", "0,1,2,3", None])
def test_gpus_attached_before_torch_are_those_it_sees_whatever_a_cell_has_set(
    gpus: tuple[int, ...], cell_sets: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    installed = Installation("worker", "cuda", 0, delays=False, memory_bytes=1 << 30)
    # An earlier lease's, which the process has outlived.
    installed.attach((0,), delays=False)
    installed.attach(gpus, delays=False)
    if cell_sets is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", cell_sets)
    # As the import of torch calls it; it is imported here already.
    installed._torch_imported()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ",".join(map(str, gpus))
    assert not torch.cuda.is_initialized()


def test_torch_that_nothing_was_attached_before_leaves_what_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    Installation("worker", "cuda", 0, delays=False, memory_bytes=1 << 30)._torch_imported()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"


def test_install_with_nonsense_is_refused_and_changes_nothing() -> None:
    settings = (("worker", "tpu", 1), ("boss", "emulated", 1), ("worker", "emulated", -1), ("worker", "none", 1000))
    for setting in settings:
        with pytest.raises(InvalidArgument, match="DEVICES_MALFORMED"):
            devices.install(*setting)  # type: ignore[arg-type]
    assert not devices.active()


def test_role_changes_without_leftovers() -> None:
    devices.install("kernel", "emulated", 1)
    devices.install("worker", "emulated", 1)
    assert torch.ones(1, device="cuda").is_cuda
    devices.install("kernel", "emulated", 1)
    assert torch._C._len_torch_function_stack() == 0
    devices.uninstall()
    assert not torch.cuda.is_available()


@pytest.mark.usefixtures("virtual")
def test_touch_is_the_first_use_since_the_reset() -> None:
    tensor = torch.ones(2, device="cuda")
    devices.reset_touch()
    assert (tensor.device, tensor.shape, tensor.real.is_cuda, torch.cuda.device_count()) is not None
    torch.ones(3).sum()
    torch.cuda.manual_seed(1)
    assert devices.touched() is None
    tensor + 1
    first = devices.touched()
    assert first is not None
    tensor.cpu()
    assert devices.touched() == first
    for use in (lambda: tensor.sum(), torch.cuda.synchronize, lambda: torch.ones(1).cuda()):
        devices.reset_touch()
        use()
        assert devices.touched() is not None


@pytest.mark.usefixtures("virtual")
def test_raw_shows_torch_as_it_is() -> None:
    tensor = torch.arange(4, dtype=torch.uint8, device="cuda")
    storage = tensor.untyped_storage()
    backend = devices.backend()
    devices.reset_touch()
    with backend.raw():
        assert tensor.device.type == "cpu"
        assert tensor.numpy().tolist() == [0, 1, 2, 3]
        assert storage.device.type == "cpu"
        assert backend.device_of(storage) == "cuda:0"
        assert bytes(backend.host_view(storage)) == bytes(range(4))
        restored = torch.UntypedStorage(4)
        backend.host_view(restored)[:] = bytes([9, 8, 7, 6])
        assert backend.to_device(restored, "cuda:1") is restored
        made = torch.empty(0, dtype=torch.uint8).set_(restored)
    assert devices.touched() is None
    assert made.device == torch.device("cuda", 1)
    assert made.tolist() == [9, 8, 7, 6]
    assert backend.device_of(torch.ones(1).untyped_storage()) == "cpu"
    backend.to_device(restored, "cpu")
    assert made.device.type == "cpu"
    with pytest.raises(InvalidArgument, match="DEVICE_UNKNOWN"):
        backend.to_device(restored, "tpu:0")


def test_host_view_keeps_the_memory_alive() -> None:
    view = devices.backend().host_view(torch.full((1000,), 7, dtype=torch.uint8).untyped_storage())
    torch.zeros(1000, dtype=torch.uint8)
    assert bytes(view) == bytes([7]) * 1000
    assert len(devices.backend().host_view(torch.UntypedStorage(0))) == 0


def test_none_backend_refuses_devices_by_name() -> None:
    devices.install("worker", "none", 0)
    try:
        assert not torch.cuda.is_available()
        with pytest.raises(Unsupported, match="NO_DEVICE"):
            devices.backend().to_device(torch.UntypedStorage(1), "cuda:0")
    finally:
        devices.uninstall()


@pytest.mark.usefixtures("virtual")
def test_child_forked_after_a_use_may_not_use_the_device() -> None:
    torch.ones(1, device="cuda")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.ones(1, device="cuda")
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        torch.manual_seed(3)
        os.write(writer, b"|" + str(torch.ones(2).sum().item()).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    text = os.read(reader, 4096).decode()
    os.close(reader)
    assert text.startswith("Cannot re-initialize CUDA in forked subprocess")
    assert text.endswith("|2.0")


@pytest.mark.usefixtures("virtual")
def test_unsupported_features_refuse_by_name() -> None:
    tensor = torch.ones(1, device="cuda")
    for use in (lambda: torch.cuda.CUDAGraph(), lambda: tensor.__dlpack__(), lambda: torch.from_dlpack(tensor)):
        with pytest.raises(Unsupported, match="VIRTUAL_GPU_UNSUPPORTED"):
            use()


@pytest.mark.usefixtures("virtual")
def test_gpu_package_that_is_installed_refuses_and_reads_as_missing(tmp_path, monkeypatch) -> None:
    (tmp_path / "cupy.py").write_text("raise RuntimeError('no driver')")
    with pytest.raises(ModuleNotFoundError):
        import cudf  # noqa: F401
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Unsupported, match="cupy needs a real GPU"):
        import cupy
    with pytest.raises(ImportError):
        import cupy  # noqa: F401


@pytest.mark.usefixtures("virtual")
def test_compiled_function_runs_uncompiled_on_the_device() -> None:
    model = torch.compile(torch.nn.Linear(2, 2).cuda())
    try:
        assert model(torch.ones(1, 2, device="cuda")).is_cuda
        assert "_orig_mod.weight" in model.state_dict()
    finally:
        torch.compiler.set_stance("default")


@pytest.mark.usefixtures("virtual")
def test_thread_that_ran_before_is_brought_in_by_ensure_thread() -> None:
    devices.uninstall()
    go, done, found = threading.Event(), threading.Event(), []

    def work() -> None:
        go.wait(30)
        devices.ensure_thread()
        devices.ensure_thread()
        found.append((torch.ones(1, device="cuda").is_cuda, torch._C._len_torch_function_stack()))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    devices.install("worker", "emulated", 1)
    go.set()
    assert done.wait(30)
    thread.join(30)
    assert found == [(True, 1)]


def test_hook_calls_back_once_after_the_module_is_complete(tmp_path, monkeypatch) -> None:
    (tmp_path / "late_module.py").write_text("done = True")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[bool] = []
    watching = hook.PostImportHook("late_module", lambda: seen.append(sys.modules["late_module"].done))
    watching.start()
    assert seen == []
    import late_module

    assert isinstance(late_module, types.ModuleType)
    assert seen == [True]
    assert not watching.waits
    hook.PostImportHook("late_module", lambda: seen.append(False)).start()
    assert seen == [True, False]
    del sys.modules["late_module"]


def test_hooks_for_one_module_all_call_back_in_the_order_of_their_start(tmp_path, monkeypatch) -> None:
    (tmp_path / "watched_module.py").write_text("done = True")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[int] = []
    watching = [hook.PostImportHook("watched_module", lambda n=n: seen.append(n)) for n in range(3)]
    for each in watching:
        each.start()
    import watched_module

    assert seen == [0, 1, 2]
    assert type(watched_module.__loader__) is type(watched_module.__spec__.loader) is type(hook.__loader__)
    assert not any(each.waits for each in watching)
    del sys.modules["watched_module"]


class _Asked(importlib.abc.MetaPathFinder):
    """Runs something when it is asked, as another thread may do in the middle of an import."""

    def __init__(self, run: Callable[[], object] = lambda: None) -> None:
        self.names: list[str] = []
        self._run = run

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        self.names.append(fullname)
        self._run()


def _stop_a_hook() -> None:
    waiting = hook.PostImportHook("never_imported", lambda: None)
    waiting.start()
    waiting.stop()


@pytest.mark.parametrize(
    "change",
    [
        _stop_a_hook,
        lambda: hook.WATCHER.imported("awaited_module"),
        lambda: (refusals.REFUSALS.start(), refusals.REFUSALS.stop()),
        lambda: (devices.install("worker", "emulated", 1), devices.uninstall()),
    ],
)
def test_import_under_way_asks_every_finder_whatever_stops_to_watch_meanwhile(change, monkeypatch) -> None:
    hook.PostImportHook("awaited_module", lambda: None).start()
    refusals.REFUSALS.enter()
    witness = _Asked()
    # Both behind those that watch: an element that goes in front of them moves the next one out of the walk's way.
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, _Asked(change), witness])
    with pytest.raises(ModuleNotFoundError):
        __import__("looseleaf_no_such_module")
    hook.WATCHER.hooks.pop("awaited_module", None)
    assert witness.names == ["looseleaf_no_such_module"]


def test_finders_that_two_threads_entered_at_once_do_not_ask_each_other_without_end(monkeypatch) -> None:
    hook.PostImportHook("awaited_module", lambda: None).start()
    other, behind = hook._Watcher(), _Asked()
    other.hooks["awaited_module"] = [hook.PostImportHook("awaited_module", lambda: None)]
    ours: list[importlib.abc.MetaPathFinder] = [hook.WATCHER, other]
    for twice in ([*ours, *ours], [ours[0], *ours], [*ours, ours[0]]):
        monkeypatch.setattr(sys, "meta_path", [*twice, behind])
        assert hook.WATCHER.find_spec("awaited_module", None) is None
        assert other.find_spec("awaited_module", None) is None
    assert behind.names
    hook.WATCHER.hooks.pop("awaited_module", None)


class _StoppedMeanwhile(list):  # type: ignore[type-arg]
    """Another thread stops its hooks right after one saw that there are some."""

    def __bool__(self) -> bool:
        some = len(self) > 0
        self.clear()
        return some


@pytest.mark.parametrize("hooks", [[], _StoppedMeanwhile([hook.PostImportHook("stopped_module", lambda: None)])])
def test_hook_that_another_thread_stops_during_the_import_breaks_nothing(hooks, monkeypatch) -> None:
    monkeypatch.setitem(hook.WATCHER.hooks, "stopped_module", hooks)
    hook.WATCHER.imported("stopped_module")
    assert len(hooks) == 0


def test_hook_whose_callback_raises_is_done_and_the_others_wait_on(tmp_path, monkeypatch) -> None:
    (tmp_path / "twice_module.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[str] = []

    def fail() -> None:
        seen.append("failed")
        raise RuntimeError

    hooks = [hook.PostImportHook("twice_module", call) for call in (fail, lambda: seen.append("called"))]
    for each in hooks:
        each.start()
    with pytest.raises(RuntimeError):
        __import__("twice_module")
    assert [each.waits for each in hooks] == [False, True]
    __import__("twice_module")
    assert seen == ["failed", "called"]
    del sys.modules["twice_module"]


@pytest.mark.slow
@pytest.mark.parametrize("role", ["worker", "kernel"])
def test_raw_access_holds_also_where_torch_is_imported_inside_it(role: str) -> None:
    code = (
        "import looseleaf.devices as d\n"
        f"d.install({role!r}, 'emulated', 1)\n"
        "with d.raw(), d.raw():\n"
        "    import torch\n"
        "    s = torch.UntypedStorage(8)\n"
        "    d.backend().to_device(s, 'cuda:0')\n"
        "    t = torch.empty(0).set_(s, 0, (2,), (1,))\n"
        "    assert t.device.type == s.device.type == 'cpu' and torch._C._is_torch_function_all_disabled()\n"
        "assert t.device.type == s.device.type == 'cuda' and t.cpu().numel() == 2\n"
        "assert not torch._C._is_torch_function_all_disabled()\n"
        "with d.raw():\n"
        "    assert t.device.type == 'cpu'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
