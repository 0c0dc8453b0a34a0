"""The worker protocol: framed msgpack messages and fds between a daemon and its kernels, zygotes and workers.

Reading order: `frames` (bytes), `fields` (checked access), `channel` and `aio` (sockets), `rpc`, `threaded` and
`aio_rpc` (requests), `state_io` (session state over a link). `docs/protocol.md` lists every message.
"""
