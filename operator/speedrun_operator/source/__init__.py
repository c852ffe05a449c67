"""Which code a Speedrun runs: what was asked for, how git is asked for it, and what it came to. Pure."""
