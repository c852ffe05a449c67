"""/metrics: what the operator knows and counts, in Prometheus' words. It reads figures that others keep.

`table` says what there is, `figures` what it is made of, `page` puts the two together.
"""
