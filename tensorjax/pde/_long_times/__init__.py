"""Long times of linear equations: stationary densities without steps in time."""
