"""The merge engine: lazy checkpoints and their views, rules over one parameter, and the loop that writes a merge."""
