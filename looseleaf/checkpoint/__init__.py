"""A session's state between plain processes: manifest, object graph, payloads, save and restore (design §3).

Import `looseleaf.checkpoint.manifest` alone in a service: it needs neither torch nor numpy. Nothing is imported here so
that this stays true.
"""
