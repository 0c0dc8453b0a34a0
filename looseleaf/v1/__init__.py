"""Generated protobuf and gRPC code of `proto/looseleaf/v1`; built, never committed."""
