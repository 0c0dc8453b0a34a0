"""TensorFlow and JAX in a kernel of real GPUs: questions are answered for the pool, no GPU is opened."""

from __future__ import annotations

import pickle
import sys
from collections import namedtuple
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from looseleaf import devices
from looseleaf.devices.description import GpuDescription

H100 = GpuDescription("NVIDIA H100", 80 << 30, 9, 0, 132, "12.8", "570.1")
Physical = namedtuple("Physical", "name device_type")
CPU = Physical("/physical_device:CPU:0", "CPU")


class FakeTensorflow(ModuleType):
    """The few functions that people ask; notes whether it was told to stay on the CPU."""

    def __init__(self) -> None:
        super().__init__("tensorflow")
        self.hidden: list[Any] = []

        def listed(device_type: str | None = None) -> list[Any]:
            assert device_type != "GPU", "TensorFlow itself was asked for GPUs"
            return [CPU] if device_type in (None, "CPU") else []

        self.grown: list[Any] = []
        inner = SimpleNamespace(
            list_physical_devices=listed, set_memory_growth=lambda *a: self.grown.append(a),
            get_device_details=lambda device: {"device_name": "a CPU"},
        )  # fmt: skip
        self.config = SimpleNamespace(
            list_physical_devices=listed, list_logical_devices=listed, experimental=inner, PhysicalDevice=Physical,
            LogicalDevice=Physical, set_visible_devices=lambda *a: self.hidden.append(a),
        )  # fmt: skip
        self.test = SimpleNamespace(gpu_device_name=lambda: "", is_gpu_available=lambda: False)


class FakeJax(ModuleType):
    """As `FakeTensorflow`."""

    def __init__(self, platform: str = "cpu") -> None:
        super().__init__("jax")
        self.updates: list[Any] = []
        self.config = SimpleNamespace(update=lambda *a: self.updates.append(a))
        own = [SimpleNamespace(platform=platform, id=0)]
        self.devices = self.local_devices = lambda backend=None: own
        self.device_count = self.local_device_count = lambda backend=None: 1
        self.default_backend = lambda: platform


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    tensorflow, jax = FakeTensorflow(), FakeJax()
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    monkeypatch.setitem(sys.modules, "jax", jax)
    yield tensorflow, jax
    devices.uninstall()


def test_tensorflow_sees_the_pool_and_stays_on_the_cpu(libraries: tuple[Any, Any]) -> None:
    tensorflow, _ = libraries
    devices.install("kernel", "cuda", 2, description=H100)
    gpus = tensorflow.config.list_physical_devices("GPU")
    assert [(g.name, g.device_type) for g in gpus] == [(f"/physical_device:GPU:{i}", "GPU") for i in range(2)]
    assert tensorflow.config.experimental.list_physical_devices("GPU") == gpus
    assert tensorflow.config.list_physical_devices() == [CPU, *gpus]
    assert tensorflow.config.list_physical_devices("CPU") == [CPU]
    assert tensorflow.config.list_logical_devices("GPU")[1].name == "/device:GPU:1"
    tensorflow.config.experimental.set_memory_growth(gpus[0], True)
    tensorflow.config.experimental.set_memory_growth(CPU, True)
    assert tensorflow.grown == [(CPU, True)]
    assert tensorflow.config.experimental.get_device_details(gpus[0])["compute_capability"] == (9, 0)
    assert tensorflow.config.experimental.get_device_details(CPU) == {"device_name": "a CPU"}
    assert tensorflow.test.gpu_device_name() == "/device:GPU:0" and tensorflow.test.is_gpu_available()
    assert tensorflow.hidden == [([], "GPU")]


def test_jax_sees_the_pool_and_stays_on_the_cpu(libraries: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _, jax = libraries
    devices.install("kernel", "cuda", 2, description=H100)
    found = jax.devices()
    assert [(d.id, d.platform, d.device_kind) for d in found] == [(i, "gpu", "NVIDIA H100") for i in range(2)]
    assert jax.devices("gpu") == jax.local_devices(backend="cuda") == found
    assert [d.platform for d in jax.devices("cpu")] == ["cpu"]
    assert (jax.device_count(), jax.local_device_count("gpu"), jax.default_backend()) == (2, 2, "gpu")
    assert jax.updates == [("jax_platforms", "cpu")]
    there = pickle.dumps(found[0])
    devices.uninstall()
    assert jax.default_backend() == "cpu"
    monkeypatch.setitem(sys.modules, "jax", FakeJax("gpu"))
    assert isinstance(pickle.loads(there), SimpleNamespace), "on a worker it is JAX's own device"


@pytest.mark.parametrize(("role", "kind"), [("kernel", "emulated"), ("worker", "cuda"), ("kernel", "none")])
def test_both_answer_themselves_where_torch_alone_has_virtual_gpus_and_on_workers(
    libraries: tuple[Any, Any], role: Any, kind: Any
) -> None:
    tensorflow, jax = libraries
    devices.install(role, kind, 1)
    assert jax.default_backend() == "cpu" and tensorflow.config.list_physical_devices() == [CPU]
    assert (tensorflow.hidden, jax.updates) == ([], [])


def test_pool_without_gpus_gives_none(libraries: tuple[Any, Any]) -> None:
    tensorflow, jax = libraries
    devices.install("kernel", "cuda", 0)
    assert tensorflow.config.list_physical_devices("GPU") == [] and not tensorflow.test.is_gpu_available()
    assert jax.default_backend() == "cpu"


def test_library_of_another_shape_or_in_use_keeps_its_own_answers(
    libraries: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    tensorflow, jax = libraries

    def in_use(*_args: Any) -> None:
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    tensorflow.config.set_visible_devices = in_use
    del jax.config
    devices.install("kernel", "cuda", 1, description=H100)
    assert tensorflow.config.list_physical_devices() == [CPU] and jax.default_backend() == "cpu"
    assert [record.getMessage().split()[1] for record in caplog.records] == ["name=tensorflow", "name=jax"]
