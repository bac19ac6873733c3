"""What runs inside the jail: standard library only, loaded from this folder alone by `start.py`."""
