"""One evaluation loop: batches dealt to ranks, rows kept per item, every metric computed once."""
