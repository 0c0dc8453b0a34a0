"""Scheduler: leases, epochs, placement of cells on workers (design §6)."""
