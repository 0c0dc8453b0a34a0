"""The only home of gRPC plumbing.

Servers: `service.py` (start here), `service_main.py`, `server.py`, `interceptors.py`, `dedupe.py`. Clients:
`client.py`. Both: `policy.py`, `status.py`, `address.py`, `metrics.py`. Nothing of grpc's errors leaves this package.
"""
