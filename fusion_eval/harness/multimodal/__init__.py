"""Multimodal tasks: folders of YAML files and Python hooks in the manner of LMMS-Eval, on the language harness."""
