"""Networks and normalizers."""
