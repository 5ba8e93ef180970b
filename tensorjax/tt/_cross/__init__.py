"""Cross approximation: tensor trains of black-box functions, from few of their values."""
