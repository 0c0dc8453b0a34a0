def fork_orphan() -> int:
    """As `os.fork`, but the parent of the new process is the nearest subreaper. Only for a process without threads.

    Returns its pid here and 0 in it. A process in between, which shares this one's memory and has ended when this
    returns, is the one that forks: the system copies the page tables once, as for one fork. Raises OSError.
    """
