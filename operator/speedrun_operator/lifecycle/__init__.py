"""The state machine of a Speedrun: what was seen and when it is → the next status and what to do. Pure.

One decision a file; `decide` composes them. No I/O, no clock of its own: `now` is given.
"""
