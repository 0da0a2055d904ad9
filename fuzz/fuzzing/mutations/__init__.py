"""Changes to inputs: of bytes, of JSON-like trees, of protobuf messages."""
