"""Metrics that torchmetrics lacks, or answers in a way that misleads; all are torchmetrics metrics themselves."""
