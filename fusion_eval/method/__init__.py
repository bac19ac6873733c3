"""Merging methods: one file each, named as in its paper; each is a composition of `fusion_eval.method.step`."""
