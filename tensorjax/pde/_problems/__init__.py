"""PDE problems: Fokker–Planck, Liouville and reaction equations, with exact solutions."""
