"""Metrics by items: scores whose mean a metric is, or a function of item weights, so that it can be resampled."""
