"""All ops, one declaration each, grouped by kin; importing fills the registry in `core/op.py`."""
