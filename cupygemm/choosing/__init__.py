"""Which kernel runs a product: entries of bundles, defaults, and a forecast where there is no entry."""
