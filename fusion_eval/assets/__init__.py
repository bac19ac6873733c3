"""The data and the tiny experts of the default run; see README.md in this folder for their origin and licence."""
