"""What a host's zygotes and workers are started with, as its configuration says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from looseleaf.config import DaemonConfig
from looseleaf.devices.description import GpuDescription, described
from looseleaf.devices.smi_shim import SMI_FOLDER, offer_smi
from looseleaf.services.worker_daemon.core.zygote_nodes import TreeLimits
from looseleaf.services.worker_daemon.generations import ZygoteGenerations
from looseleaf.services.worker_daemon.import_cache import CacheSettings, ImportCache
from looseleaf.services.worker_daemon.probe_table import ProbeTable
from looseleaf.services.worker_daemon.probes import Probes, ProbeSettings
from looseleaf.services.worker_daemon.reaper import Reaper
from looseleaf.services.worker_daemon.scrubbed_env import scrubbed, with_gpus_shown
from looseleaf.services.worker_daemon.zygote import SINGLE_THREADED, Zygote, ZygoteSettings

# Of a host's memory one part in so many is for zygotes.
ZYGOTE_MEMORY_SHARE: Final = 4


def host_memory_bytes() -> int:
    """What is built into this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class WorkerSetup:
    """`gpus`: what the real GPUs of the host are, as their driver told. `own_user`: workers run as the daemon does."""

    config: DaemonConfig
    gpus: Sequence[GpuDescription]
    own_user: bool

    @property
    def gpu_memory_bytes(self) -> int:
        """Of the smallest GPU, as its driver tells or as the configuration has it."""
        return min((gpu.memory_bytes for gpu in self.gpus), default=self.config.gpu_memory_bytes)

    @property
    def cell_gpus(self) -> int:
        """As many GPUs as a cell gets, whatever the host has: notebooks and libraries branch on their number."""
        return min(self.config.gpus, 1) if self.config.cell_gpus is None else self.config.cell_gpus

    def worker_env(self) -> dict[str, str]:
        """Variables that a worker gets beyond those of its session; offers the pool's `nvidia-smi` in a folder."""
        config = self.config
        gpu = described(config.device, self.gpu_memory_bytes, self.gpus[0] if self.gpus else None)
        env = {"PATH": os.environ.get("PATH", os.defpath)}
        offer_smi(env, config.kernel_socket.parent / SMI_FOLDER, config.device, self.cell_gpus, gpu)
        return {
            **env,
            "LOOSELEAF_HOST_ID": config.host_id,
            "LOOSELEAF_DEVICE": config.device,
            "LOOSELEAF_GPUS": str(self.cell_gpus),
            "LOOSELEAF_GPU_MEMORY_BYTES": str(self.gpu_memory_bytes),
            "LOOSELEAF_THREADS": str(os.cpu_count() or 1),
        }

    def zygotes(self, reaper: Reaper) -> ZygoteGenerations:
        """Not started yet."""
        config, settings = self.config, self._zygote_settings()

        def base(learned: tuple[str, ...]) -> Zygote:
            more = tuple(name for name in learned if name not in settings.imports)
            return Zygote(replace(settings, imports=(*settings.imports, *more)), reaper)

        return ZygoteGenerations(base, self._import_cache(settings, reaper), config.python, config.tenant)

    def _zygote_settings(self) -> ZygoteSettings:
        config = self.config
        log_path = Path(config.data) / "logs" / f"zygote-{config.host_id}.log"
        log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return ZygoteSettings(
            config.python,
            tuple(config.base_imports),
            {"PYTHONHASHSEED": config.hash_seed, **self.worker_env()},
            str(log_path),
            config.zygote_start_timeout_s,
            # Root's own packages are not those of the user.
            user_site=self.own_user,
        )

    def _import_cache(self, settings: ZygoteSettings, reaper: Reaper) -> ImportCache:
        config = self.config
        environment = with_gpus_shown({**scrubbed(os.environ)[0], **SINGLE_THREADED, **settings.env})
        probes = Probes(
            ProbeTable(Path(config.data) / "probes" / config.host_id), reaper,
            ProbeSettings(settings.python, environment, settings.log_path, user_site=settings.user_site),
        )  # fmt: skip
        memory_bytes = config.zygote_memory_bytes or host_memory_bytes() // ZYGOTE_MEMORY_SHARE
        limits = TreeLimits(nodes_max=config.zygotes_max, pss_bytes_max=memory_bytes)
        bare = replace(settings, imports=())
        return ImportCache(CacheSettings(lambda: Zygote(bare, reaper), limits, probes, settings.log_path), reaper)
