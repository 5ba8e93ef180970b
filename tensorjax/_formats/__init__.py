"""Types that all formats stand on: trains, their cores, operators and serialisation."""
