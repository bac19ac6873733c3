"""Small functions that user code imports by these names."""
