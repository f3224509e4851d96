"""What all floors above share: dtypes, shapes, trees, random bits, ops and their one door."""
