"""What a Speedrun's runs find ready: container, code, data and downloads, each named by its content. Pure.

`keys` names them, `needs` says which a plan has and in which order, `manifest` reads what an entry says of itself.
"""
