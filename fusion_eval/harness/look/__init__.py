"""Looking at task files without a model: what there is, whether it holds, what a document becomes."""
