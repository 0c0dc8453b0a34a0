"""What runs inside a zygote and inside the workers that are forked from it. No gRPC, no threads before the fork.

Reading order: `zygote` and `child` (processes), `runtime` and `stages` (requests of the daemon), `shell`, `execution`,
`streams`, `raw_output`, `interaction`, `comms` (a cell that behaves as in an ordinary kernel).
"""
