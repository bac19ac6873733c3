"""Reports: typed values, JSON, tables, the summary of a sweep."""
