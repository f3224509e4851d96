"""Calibration of inference on simulated data; testing/joint.py shares all but `sbc.py`."""
