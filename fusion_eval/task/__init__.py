"""What to measure: batteries of metrics and predict functions."""
