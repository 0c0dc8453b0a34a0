"""Starts the recipe frontend: its state is the kernels' logs, so a restart costs one resend per session."""

from __future__ import annotations

from collections.abc import Sequence

from looseleaf.clock import SystemClock
from looseleaf.config import FrontendConfig
from looseleaf.rpc.server import Registration
from looseleaf.rpc.service import Service
from looseleaf.rpc.service_main import service_main
from looseleaf.rpc.store_client import StoreClient
from looseleaf.services.frontend.core.book import SessionBook
from looseleaf.services.frontend.core.facts_cache import FactsCache
from looseleaf.services.frontend.metrics import FrontendMetrics
from looseleaf.services.frontend.recipes import RecipeMaker
from looseleaf.services.frontend.servicer import FrontendServicer
from looseleaf.services.frontend.state_reader import StateReader
from looseleaf.v1.frontend_pb2_grpc import add_FrontendServiceServicer_to_server
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceStub


async def build(service: Service[FrontendConfig]) -> Sequence[Registration]:
    """Wires the service; store and scheduler are dialled when they are first needed."""
    config = service.config
    channel = service.open_channel(config.store, peer="store")
    store = StoreClient(channel, restart_patience_s=config.manifest_timeout_s / 2)
    reader = StateReader(store, FactsCache(), service.run_blocking, config.manifest_timeout_s)
    book = SessionBook(sessions_max=config.sessions_max, runs_max=config.log_runs_max)
    metrics = FrontendMetrics(service.registry)
    metrics.follow(book)
    maker = RecipeMaker(book, reader, metrics, source_bytes_max=config.source_bytes_max)
    service.on_stop(maker.aclose)
    scheduler = SchedulerServiceStub(service.open_channel(config.scheduler, peer="scheduler"))
    servicer = FrontendServicer(maker, scheduler, SystemClock(), metrics)
    return [Registration(add_FrontendServiceServicer_to_server, servicer)]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the frontend until it is told to stop; returns its exit code."""
    return service_main("frontend", FrontendConfig, build, argv)
