"""The host's own view of its leases, counted on its own monotonic clock (design §6)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from looseleaf.errors import Conflict, PreconditionFailed
from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId, WorkerId

LEASES_MAX = 256
# Sessions whose newest epoch is remembered after their leases are gone.
EPOCHS_KEPT_MAX = 4096


@dataclass(frozen=True)
class HeldLease:
    """A right of one execution to `gpus` of this host until `expires_s` on the monotonic clock.

    `in_use`: its cell was started. `finished`: that cell's work on the GPUs is over. `worker_required`: the cell runs
    on `worker_id` or not at all.
    """

    lease_id: LeaseId
    session_id: SessionId
    epoch: Epoch
    execution_id: ExecutionId
    gpus: tuple[int, ...]
    worker_id: WorkerId | None
    path: int
    ttl_s: float
    granted_s: float
    expires_s: float
    in_use: bool = False
    finished: bool = False
    worker_required: bool = False


class LeaseTable:
    """Which execution may use which GPU. A GPU is never held by two leases at once.

    Epochs of a session only rise: a grant with an older epoch than one seen is refused, so that an
    owner that lost its session cannot start work here.
    """

    def __init__(self, gpu_count: int) -> None:
        self.gpu_count = gpu_count
        self._leases: dict[LeaseId, HeldLease] = {}
        self._epochs: OrderedDict[SessionId, Epoch] = OrderedDict()

    def grant(self, lease: HeldLease) -> None:
        """Takes the lease in; the same lease again changes nothing.

        Raises PreconditionFailed `STALE_EPOCH` or `GPU_UNKNOWN`, Conflict `GPU_BUSY` or `LEASES_FULL`.
        """
        if lease.lease_id in self._leases:
            return
        if lease.epoch < self._epochs.get(lease.session_id, 0):
            raise PreconditionFailed(
                "STALE_EPOCH", "an older owner of this session asked for a GPU; it was refused", epoch=lease.epoch
            )
        for gpu in lease.gpus:
            if not 0 <= gpu < self.gpu_count:
                raise PreconditionFailed("GPU_UNKNOWN", f"this host has {self.gpu_count} GPUs, not one numbered {gpu}")
        busy = {gpu for other in self._leases.values() if not other.finished for gpu in other.gpus} & set(lease.gpus)
        if busy:
            raise Conflict("GPU_BUSY", f"GPU {min(busy)} of this host is leased to another cell")
        if len(self._leases) >= LEASES_MAX:
            raise Conflict("LEASES_FULL", f"this host already holds {LEASES_MAX} leases")
        self._leases[lease.lease_id] = lease
        self._epochs[lease.session_id] = lease.epoch
        self._epochs.move_to_end(lease.session_id)
        if len(self._epochs) > EPOCHS_KEPT_MAX:
            self._epochs.popitem(last=False)

    def adopt(self, lease: HeldLease) -> None:
        """As `grant`, of a lease under which a cell runs since an earlier daemon's life."""
        self.grant(replace(lease, in_use=True, finished=False))

    def use(self, lease_id: LeaseId, execution_id: ExecutionId, epoch: Epoch, now_s: float) -> HeldLease:
        """Marks the lease as used by its execution, which keeps it until `release`.

        Raises PreconditionFailed `LEASE_UNKNOWN` if it expired, was revoked or is somebody else's, and `LEASE_USED` if
        its cell was started already: an execution starts at most once.
        """
        lease = self._leases.get(lease_id)
        if lease is not None and lease.in_use and lease.execution_id == execution_id:
            raise PreconditionFailed(
                "LEASE_USED",
                "this cell was started here before; whether it ended is told by the session's newest version",
                lease_id=lease_id,
            )
        if lease is None or lease.execution_id != execution_id or lease.epoch != epoch or lease.expires_s <= now_s:
            raise PreconditionFailed(
                "LEASE_UNKNOWN",
                "the GPU lease of this cell is not valid any more; nothing was run, run the cell again",
                lease_id=lease_id,
            )
        self._leases[lease_id] = used = replace(lease, in_use=True)
        return used

    def renew(self, lease_id: LeaseId, now_s: float) -> None:
        """Another term from now; unknown leases are ignored (they ended here meanwhile)."""
        if (lease := self._leases.get(lease_id)) is not None:
            self._leases[lease_id] = replace(lease, expires_s=now_s + lease.ttl_s)

    def revoke(self, lease_id: LeaseId) -> bool:
        """Ends an unused lease; returns True if a cell runs under it (it stays until that cell ends)."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        if lease.in_use:
            return True
        del self._leases[lease_id]
        return False

    def finish(self, lease_id: LeaseId) -> None:
        """Its GPUs are free; it stays listed until the scheduler has heard of its end (`release`)."""
        if (lease := self._leases.get(lease_id)) is not None:
            self._leases[lease_id] = replace(lease, finished=True)

    def release(self, lease_id: LeaseId) -> None:
        """It is gone, and its GPUs are free."""
        self._leases.pop(lease_id, None)

    def expire(self, now_s: float) -> list[HeldLease]:
        """Drops unused leases past their term and returns them; a running cell keeps its lease."""
        gone = [lease for lease in self._leases.values() if not lease.in_use and lease.expires_s <= now_s]
        for lease in gone:
            del self._leases[lease.lease_id]
        return gone

    def held(self) -> list[HeldLease]:
        """Every lease, in order of their grant."""
        return list(self._leases.values())
