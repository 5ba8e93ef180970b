"""Coordinate maps, and the generators that move them so that TT-ranks stay low."""
