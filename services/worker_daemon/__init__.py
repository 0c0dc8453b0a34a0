"""Worker daemon: one per host; zygotes, workers, host arena, GPU hand-out (design §5, §7)."""
