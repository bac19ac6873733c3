"""Task files and hooks of the picture benchmarks that vision-language papers report, as `fe_*` tasks.

Metrics are written from the papers' definitions; the fields are those of the data sets on the hub.
"""
