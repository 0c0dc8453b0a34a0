def fork_orphan() -> int:
    """As `os.fork`, but the parent of the new process is the nearest subreaper.

    Returns its pid here and 0 in it. A process in between, which shares this one's memory and has ended when this
    returns, is the one that forks: the system copies the page tables once, as for one fork. Where vfork is an ordinary
    fork it does the same with a copy. Raises OSError, also if the process in between is killed: then none goes on.

    Only for a process that has no threads and never had one, those of native libraries included; nothing here checks
    it. Otherwise, if the process in between is killed during its fork, locks of the C library stay held in this one's
    own memory and its next fork may hang; the daemon's limit for a fork then ends it.
    """
