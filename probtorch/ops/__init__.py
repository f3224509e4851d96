"""All ops, one declaration each, grouped by kin; importing this package fills the registry in `core/op.py`."""
