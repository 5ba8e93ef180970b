"""The plan of what lives where: _plan; _placement (the search); _machine (measured), _bound."""
