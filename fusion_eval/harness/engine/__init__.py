"""Models behind one protocol: what scores continuations and what continues prompts."""
