"""The four gRPC services of LooseLeaf; import them as `looseleaf.services.<name>`."""
