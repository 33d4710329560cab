"""Who measures, or answers for one who did."""
