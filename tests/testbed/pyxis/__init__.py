"""The Pyxis stand-in: a SPANK plugin in C with Pyxis' options, and the programs of its containers."""
