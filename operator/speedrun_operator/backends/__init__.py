"""Where allocations run: the protocol, and one package a backend."""
