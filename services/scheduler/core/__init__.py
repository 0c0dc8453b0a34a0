"""I/O-free policy of this service."""
