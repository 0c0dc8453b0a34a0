"""The one-machine cluster: all services as processes of this machine.

`cluster.py` is for callers (`LocalCluster`), `supervisor.py` is the process that starts, watches and restarts services,
`plan.py` says what runs where, `record.py` is the file by which everybody finds a running cluster.
"""
