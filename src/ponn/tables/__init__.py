"""Any source becomes Arrow, in and out."""
