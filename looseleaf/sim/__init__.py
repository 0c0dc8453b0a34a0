"""The simulator: the scheduler's own policy, and what it is compared with, under the notebooks of a whole team.

Reading order: `model` (every number, from `workloads/*.toml`), `workload` (what people do), `world` (one stretch of
time), `policies/` (who gets a GPU when), `results` (what is told of it). docs/simulate.md says what figures mean.
"""
