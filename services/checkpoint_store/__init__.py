"""Checkpoint store: manifests, units, region index, durable regions (design §7)."""
